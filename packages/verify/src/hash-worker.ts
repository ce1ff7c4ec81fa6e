import type { Hash } from "node:crypto";
import { type MessagePort, parentPort, workerData } from "node:worker_threads";
import { alignedBuffers } from "@k3/stage";
import { startHash } from "./hash-here.ts";
import type { HashAnswer, HashedFile, HashTask } from "./hash-pool.ts";
import { OpenFile } from "./open-file.ts";

/**
 * Two threads per file: one has blocks read and takes CRC-32s, the other computes the cryptographic hash, so that the
 * pair runs at the speed of the slowest of disk, CRC-32 and hash. The disk has two reads under way while a third block
 * is summed up and others are hashed: direct reads have no kernel that reads ahead for them. The blocks are memory that
 * both threads see; who may touch one goes back and forth by its number.
 */
const BLOCK_BYTES = 1024 * 1024;
const READS = 2;
const BLOCKS = 6;
const PROGRESS_BYTES = 32 * 1024 * 1024;

type ToDigest =
  | { blocks: Uint8Array[] }
  | { start: HashTask["algorithm"]; size: number }
  | { block: number; length: number }
  | { end: true };
type ToReader = { free: number } | { hash: string };

const { role, port } = workerData as { role: "read" | "digest"; port: MessagePort };
if (role === "read") read();
else digest();

function digest(): void {
  let blocks: Uint8Array[] = [];
  let hash: Hash | undefined;
  const answer = (message: ToReader) => port.postMessage(message);
  port.on("message", (message: ToDigest) => {
    if ("blocks" in message) blocks = message.blocks;
    else if ("start" in message) hash = startHash({ algorithm: message.start, size: message.size });
    else if ("block" in message) {
      hash!.update(blocks[message.block]!.subarray(0, message.length));
      answer({ free: message.block });
    } else answer({ hash: hash!.digest("hex") });
  });
}

function read(): void {
  const blocks = alignedBuffers(BLOCKS, BLOCK_BYTES);
  const free = Array.from(blocks.keys());
  const answer = (value: HashAnswer) => parentPort!.postMessage(value);
  const tell = (message: ToDigest) => port.postMessage(message);
  let hash: string | undefined;
  let wake = () => {};
  /** Resolves when the other thread has given a block back, or the hash. */
  const woken = () => new Promise<void>((resolve) => (wake = resolve));

  tell({ blocks });
  port.on("message", (message: ToReader) => {
    if ("free" in message) free.push(message.free);
    else hash = message.hash;
    wake();
  });

  const hashFile = async (task: HashTask): Promise<HashedFile> => {
    const file = new OpenFile(task);
    const underWay: Promise<{ block: number; length: number }>[] = [];
    let next = 0;
    const readAhead = () => {
      while (next < file.size && underWay.length < READS && free.length > 0) {
        const block = free.pop()!;
        const reading = file.read(blocks[block]!, next).then((length) => ({ block, length }));
        // Whoever awaits it hears of an error; until then it is not unhandled.
        reading.catch(() => free.push(block));
        underWay.push(reading);
        next += BLOCK_BYTES;
      }
    };
    try {
      tell({ start: task.algorithm, size: task.size });
      let unreported = 0;
      for (readAhead(); underWay.length > 0 || next < file.size; readAhead()) {
        const first = underWay.shift();
        if (!first) {
          await woken();
          continue;
        }
        const { block, length } = await first;
        readAhead();
        tell({ block, length });
        file.add(blocks[block]!.subarray(0, length));
        unreported += length;
        if (unreported >= PROGRESS_BYTES) {
          answer({ read: unreported });
          unreported = 0;
        }
      }
      tell({ end: true });
      hash = undefined;
      while (hash === undefined) await woken();
      answer({ read: unreported });
      return file.finish(hash);
    } finally {
      for (const reading of await Promise.allSettled(underWay)) {
        if (reading.status === "fulfilled") free.push(reading.value.block);
      }
      file.close();
    }
  };

  parentPort!.on("message", (task: HashTask) => {
    hashFile(task).then(
      (done) => answer({ done }),
      ({ message, code }: NodeJS.ErrnoException) => answer({ error: { message, code } }),
    );
  });
}
