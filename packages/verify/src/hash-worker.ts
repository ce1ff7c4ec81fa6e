import { createHash, type Hash } from "node:crypto";
import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { type MessagePort, parentPort, workerData } from "node:worker_threads";
import { crc32 } from "node:zlib";
import { CHUNK_BYTES, fileIdentity, sameIdentity } from "@k3/stage";
import type { HashAnswer, HashTask } from "./hash-pool.ts";

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
      hash = createHash(message.start === "sha256" ? "sha256" : "sha1");
      // Git hashes a header before the content, which needs only the size.
      if (message.start === "git-sha1") hash.update(`blob ${message.size}\0`);
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
      file = new OpenFile(task);
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
        answer(done);
      } catch (error) {
        fail(error);
      }
    }
  });
}

/** A file being read from its start to its end, with the CRC-32 of every 64 MiB. */
class OpenFile {
  readonly #fd: number;
  readonly #before;
  readonly #startedMs = Date.now();
  readonly #crcs: number[] = [];
  #crc = 0;
  #position = 0;
  unreported = 0;
  ended = false;

  constructor({ path }: HashTask) {
    this.#fd = openSync(path, "r");
    this.#before = fileIdentity(fstatSync(this.#fd, { bigint: true }));
  }

  /** Fills the buffer with what follows; 0 at the end of the file. Buffers divide the 64 MiB of a CRC-32. */
  next(buffer: ArrayBuffer): number {
    const bytes = new Uint8Array(buffer);
    let length = 0;
    while (length < bytes.length) {
      const got = readSync(this.#fd, bytes, length, bytes.length - length, this.#position + length);
      if (got === 0) break;
      length += got;
    }
    if (length === 0) {
      this.ended = true;
      return 0;
    }
    this.#crc = crc32(bytes.subarray(0, length), this.#crc);
    this.#position += length;
    this.unreported += length;
    if (this.#position % CHUNK_BYTES === 0) this.#endChunk();
    return length;
  }

  report(): number {
    const bytes = this.unreported;
    this.unreported = 0;
    return bytes;
  }

  finish(hash: string): HashAnswer {
    const identity = fileIdentity(fstatSync(this.#fd, { bigint: true }));
    this.close();
    if (this.#position % CHUNK_BYTES !== 0) this.#endChunk();
    const changed = !sameIdentity(this.#before, identity) || this.#position !== identity.size;
    return { done: { hash, crc32: this.#crcs, identity, startedMs: this.#startedMs, changed } };
  }

  close(): void {
    closeSync(this.#fd);
  }

  #endChunk(): void {
    this.#crcs.push(this.#crc);
    this.#crc = 0;
  }
}
