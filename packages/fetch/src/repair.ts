import { type FileHandle, open, stat, unlink } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { localPath, pause } from "@k3/hub";
import {
  CHUNK_BYTES,
  expectedHash,
  fileIdentity,
  type Receipt,
  type SnapshotFile,
  StageError,
  throwIfAborted,
  writeReceipt,
} from "@k3/stage";
import { hashWhole } from "./hasher.ts";
import { writeHfMetadata } from "./hf-layout.ts";
import { partName, partsDirectory } from "./paths.ts";
import { type PublishContext, recordHash } from "./publish.ts";
import type { Run } from "./run.ts";
import { FileSource } from "./source.ts";
import { SpanWriter } from "./span-writer.ts";
import { transfer } from "./transfer.ts";

/** A repaired file must be right after so many rounds of finding damaged chunks and fetching them. */
const MAX_ROUNDS = 3;

/**
 * Fetches the damaged chunks of one published file again and writes them into it. A chunk is received aside, compared with
 * the CRC-32 that is known for it (from the receipt or the hash journal), and only then patched in, so the file is never worse than it was; the receipt
 * names the chunk as damaged until the whole file has been hashed and found right. False: that did not succeed, and the
 * file has to be fetched as a whole.
 */
export async function repairFile(
  run: Run,
  context: PublishContext,
  receipt: Receipt,
  file: SnapshotFile,
  damaged: readonly number[],
  known: readonly number[] | undefined,
): Promise<boolean> {
  const path = localPath(context.dir, file.path);
  const info = await stat(path).catch(() => undefined);
  if (info?.size !== file.size) return false;
  const source = new FileSource(run, context.revision, file);
  let chunks = damaged.filter((chunk) => chunk * CHUNK_BYTES < file.size);
  for (let round = 0; round < MAX_ROUNDS; round++) {
    run.report.begin(
      `repairing ${file.path}`,
      chunks.reduce((sum, chunk) => sum + chunkLength(file, chunk), 0),
    );
    const target = await open(path, "r+");
    try {
      await eachOf(chunks, run.settings.concurrency, (chunk) =>
        repairChunk(run, source, target, chunk, known?.[chunk]),
      );
      await target.sync();
    } finally {
      await target.close();
    }
    run.report.begin(`hashing ${file.path}`, file.size);
    // Later than the clock tick of the last write, so that nobody has to doubt what was hashed.
    await pause(20, run.signal);
    const startedMs = Date.now();
    const result = await hashWhole(run.hasher, path, file, run.signal, (bytes) =>
      run.report.meter.add(bytes),
    );
    if (!result) return false;
    if (result.hash === expectedHash(file).hash) {
      await recordHash(context, file, "read", startedMs, result.crc32);
      await writeHfMetadata(context.dir, context.revision, file);
      await clearDamage(context.dir, receipt, file, result.crc32);
      return true;
    }
    if (!known) return false;
    chunks = known.flatMap((crc, chunk) => (crc === result.crc32[chunk] ? [] : [chunk]));
    if (chunks.length === 0) return false;
    run.report.log("warn", `${file.path}: ${chunks.length} more chunks are damaged; fetching them too`);
  }
  return false;
}

const chunkLength = (file: SnapshotFile, chunk: number) =>
  Math.min(CHUNK_BYTES, file.size - chunk * CHUNK_BYTES);

async function repairChunk(
  run: Run,
  source: FileSource,
  target: FileHandle,
  chunk: number,
  expectedCrc: number | undefined,
): Promise<void> {
  const { file } = source;
  const start = chunk * CHUNK_BYTES;
  const length = chunkLength(file, chunk);
  const asidePath = join(partsDirectory(run.settings.dir), `${partName(file)}-${chunk}.chunk`);
  const aside = await open(asidePath, "w+");
  try {
    for (let attempt = 1; ; attempt++) {
      await receiveChunk(run, source, aside, { start, end: start + length });
      const crc = await eachBlock(run, aside, length, async () => undefined);
      if (expectedCrc === undefined || crc === expectedCrc) break;
      if (attempt === 2) {
        throw new StageError(
          "E_DATA",
          `${file.path}: the bytes of chunk ${chunk} that the source sends are not those once verified`,
          { hint: "nothing was changed; try another --endpoint" },
        );
      }
      source.distrust();
    }
    await eachBlock(run, aside, length, async (data, at) => {
      await run.disk.write(() => target.write(data, 0, data.length, start + at));
    });
  } finally {
    await aside.close();
    await unlink(asidePath).catch(() => undefined);
  }
}

/** Receives [start, end) of the file into a file that begins with it. */
async function receiveChunk(
  run: Run,
  source: FileSource,
  aside: FileHandle,
  span: { start: number; end: number },
): Promise<void> {
  const { segmentBytes } = run.settings;
  const first = Math.floor(span.start / segmentBytes);
  const state = new Uint8Array(Math.ceil(span.end / segmentBytes));
  let left = Math.ceil(span.end / segmentBytes) - first;
  await new Promise<void>((resolve, reject) => {
    const length = (segment: number) => Math.min(segmentBytes, span.end - segment * segmentBytes);
    const target = {
      segmentBytes,
      state,
      start: (segment: number) => segment * segmentBytes,
      length,
      write: async (data: Buffer, position: number) => {
        await run.disk.write(() => aside.write(data, 0, data.length, position - span.start));
      },
      // A chunk that was not finished is fetched again after a restart.
      prefix: () => undefined,
      markPrefix: () => undefined,
      checkpoint: async () => undefined,
      markWritten: (_segment: number, _crc: number, risked: number) => run.risk.release(risked),
    };
    const writer = new SpanWriter(run, target, span, () => {
      if (--left === 0) resolve();
    });
    const stop = () => reject(run.signal.reason);
    run.signal.addEventListener("abort", stop, { once: true });
    receiveAll(run, source, writer).catch(reject);
  });
}

async function receiveAll(run: Run, source: FileSource, writer: SpanWriter): Promise<void> {
  for (;;) {
    const outcome = await transfer(run, source, writer);
    if (outcome === "done") return;
    if (outcome === "restream") {
      throw new StageError(
        "E_HUB",
        `the host of ${source.file.path} does not serve ranges, so it cannot be repaired`,
        {
          hint: "move the file away and run fetch without --repair",
        },
      );
    }
  }
}

/** Reads a file block by block; gives the CRC-32 of it all. */
async function eachBlock(
  run: Run,
  handle: FileHandle,
  length: number,
  use: (data: Buffer, at: number) => Promise<void>,
): Promise<number> {
  const buffer = Buffer.allocUnsafe(1024 * 1024);
  let crc = 0;
  for (let at = 0; at < length; ) {
    throwIfAborted(run.signal);
    const { bytesRead } = await handle.read(buffer, 0, Math.min(buffer.length, length - at), at);
    if (bytesRead === 0)
      throw new StageError("E_DATA", "a chunk that was just written is shorter than it was");
    const data = buffer.subarray(0, bytesRead);
    crc = crc32(data, crc);
    await use(data, at);
    at += bytesRead;
  }
  return crc;
}

async function eachOf<T>(
  items: readonly T[],
  atOnce: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const queue = [...items];
  const workers = Array.from({ length: Math.min(atOnce, queue.length) }, async () => {
    for (let item = queue.shift(); item !== undefined; item = queue.shift()) await work(item);
  });
  const results = await Promise.allSettled(workers);
  for (const result of results) if (result.status === "rejected") throw result.reason;
}

/** The file is right again: the receipt says so, with its new identity. */
export async function clearDamage(
  dir: string,
  receipt: Receipt,
  file: SnapshotFile,
  crc: number[],
): Promise<void> {
  const identity = fileIdentity(await stat(localPath(dir, file.path), { bigint: true }));
  const entry = receipt.files.find((each) => each.path === file.path);
  if (entry) Object.assign(entry, { identity, ...expectedHash(file), how: "read", crc32: crc });
  receipt.damaged = receipt.damaged.filter((each) => each.path !== file.path);
  await writeReceipt(dir, receipt);
}
