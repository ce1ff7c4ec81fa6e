import type { Hash } from "node:crypto";
import { type MessagePort, parentPort, workerData } from "node:worker_threads";
import type { HashAnswer, HashTask } from "./hash-pool.ts";
import { OpenFile, startHash } from "./open-file.ts";

/**
 * Two threads per file: one reads and takes CRC-32s, the other computes the cryptographic hash, so that the pair runs
 * at the speed of the slowest of disk, reading and hash. Buffers go back and forth between them without being copied.
 */
const BUFFER_BYTES = 1024 * 1024;
const BUFFERS = 3;
const PROGRESS_BYTES = 32 * 1024 * 1024;

type ToDigest =
  | { start: HashTask["algorithm"]; size: number }
  | { data: ArrayBuffer; length: number }
  | { end: true };
type ToReader = { free: ArrayBuffer } | { hash: string };

const { role, port } = workerData as { role: "read" | "digest"; port: MessagePort };
if (role === "read") read();
else digest();

function digest(): void {
  let hash: Hash | undefined;
  port.on("message", (message: ToDigest) => {
    if ("start" in message) {
      hash = startHash({ algorithm: message.start, size: message.size });
    } else if ("data" in message) {
      hash!.update(new Uint8Array(message.data, 0, message.length));
      port.postMessage({ free: message.data } satisfies ToReader, [message.data]);
    } else {
      port.postMessage({ hash: hash!.digest("hex") } satisfies ToReader);
    }
  });
}

function read(): void {
  const free = Array.from({ length: BUFFERS }, () => new ArrayBuffer(BUFFER_BYTES));
  let file: OpenFile | undefined;
  const answer = (value: HashAnswer) => parentPort!.postMessage(value);
  const fail = (error: unknown) => {
    const { message, code } = error as NodeJS.ErrnoException;
    file?.close();
    file = undefined;
    answer({ error: { message, code } });
  };
  const pump = () => {
    try {
      while (file && !file.ended && free.length > 0) {
        const buffer = free.pop()!;
        const length = file.next(buffer);
        if (length === 0) {
          free.push(buffer);
          port.postMessage({ end: true } satisfies ToDigest);
        } else {
          port.postMessage({ data: buffer, length } satisfies ToDigest, [buffer]);
          if (file.unreported >= PROGRESS_BYTES) answer({ read: file.report() });
        }
      }
    } catch (error) {
      fail(error);
    }
  };
  parentPort!.on("message", (task: HashTask) => {
    try {
      file = new OpenFile(task.path);
    } catch (error) {
      fail(error);
      return;
    }
    port.postMessage({ start: task.algorithm, size: task.size } satisfies ToDigest);
    pump();
  });
  port.on("message", (message: ToReader) => {
    if ("free" in message) {
      free.push(message.free);
      pump();
    } else if (file) {
      try {
        const last = file.report();
        const done = file.finish(message.hash);
        file = undefined;
        answer({ read: last });
        answer({ done });
      } catch (error) {
        fail(error);
      }
    }
  });
}
