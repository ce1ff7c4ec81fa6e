import { type FileHandle, mkdir, open, stat, unlink } from "node:fs/promises";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { expectedHash, Journal, readJournal, type SnapshotFile } from "@k3/stage";
import { z } from "zod";
import { type DiskQueue, preallocate } from "./disk.ts";
import { owned, owner, requireDeadOwner, requireFirstLiveOwner, thisProcess } from "./owner.ts";
import { partName } from "./paths.ts";

/** What a segment is: not there, being fetched, written but not yet journaled, or safe. */
export const SEGMENT = { missing: 0, taken: 1, written: 2, durable: 3 } as const;

const header = z.object({
  v: z.literal(1),
  path: z.string(),
  size: z.int().nonnegative(),
  hash: z.string(),
  seg: z.int().positive(),
});
const record = z.union([
  /** Segment `s` of `n` bytes is on the disk and has this CRC-32. `a`: it was adopted from another tool. */
  z.object({ s: z.int().nonnegative(), n: z.int().positive(), c: z.string(), a: z.boolean().optional() }),
  /** Segment `x` was found damaged and counts as missing. */
  z.object({ x: z.int().nonnegative() }),
  /** A process took over the part file. */
  z.object({ o: owner }),
]);

/**
 * A file under construction: the part file, of full size from the start, and beside it the journal that alone says
 * which segments of it count. Data is synced before its record is appended, and the record synced before it is relied on.
 */
export class PartFile {
  readonly path: string;
  readonly file: SnapshotFile;
  readonly segmentBytes: number;
  readonly state: Uint8Array;
  readonly crc: Uint32Array;
  readonly adopted = new Set<number>();
  /** Bytes that the journal vouched for when the file was opened. */
  readonly resumedBytes: number;
  readonly #handle: FileHandle;
  readonly #journal: Journal;
  readonly #disk: DiskQueue;
  readonly #onDurable: (bytes: number) => void;
  readonly #onError: (error: unknown) => void;
  readonly #writes = new Set<Promise<void>>();
  #unsynced: number[] = [];
  #checkpoint: Promise<void> | undefined;

  private constructor(
    path: string,
    file: SnapshotFile,
    opened: { handle: FileHandle; journal: Journal; records: z.infer<typeof record>[] },
    options: PartOptions,
  ) {
    this.path = path;
    this.file = file;
    this.segmentBytes = options.segmentBytes;
    this.state = new Uint8Array(Math.ceil(file.size / options.segmentBytes));
    this.crc = new Uint32Array(this.state.length);
    this.#handle = opened.handle;
    this.#journal = opened.journal;
    this.#disk = options.disk;
    this.#onDurable = options.onDurable;
    this.#onError = options.onError;
    let resumed = 0;
    for (const entry of opened.records) this.#replay(entry);
    for (let s = 0; s < this.state.length; s++)
      if (this.state[s] === SEGMENT.durable) resumed += this.length(s);
    this.resumedBytes = resumed;
  }

  /**
   * Opens the part file of a file, or makes it. What an earlier run journaled counts if the journal speaks of the same
   * content and segment size and the part file has its full size; else both start over. Throws E_LOCKED when a live
   * process owns it, E_SPACE.
   */
  static open(directory: string, file: SnapshotFile, options: PartOptions): Promise<PartFile> {
    return options.disk.sync(() => PartFile.#open(directory, file, options));
  }

  static async #open(directory: string, file: SnapshotFile, options: PartOptions): Promise<PartFile> {
    await mkdir(directory, { recursive: true });
    const path = join(directory, `${partName(file)}.part`);
    const journalPath = join(directory, `${partName(file)}.journal`);
    const { hash } = expectedHash(file);
    const head = { v: 1, path: file.path, size: file.size, hash, seg: options.segmentBytes };
    const me = await thisProcess();
    const old = await readJournal(journalPath);
    await requireDeadOwner(old.records, me, journalPath, file.path);
    const valid =
      sameHeader(old.records[0], head) && (await stat(path).catch(() => undefined))?.size === file.size;
    if (!valid) {
      // The journal goes first: a part file without one is worth nothing, a journal without its part file lies.
      for (const stale of [journalPath, path]) await unlink(stale).catch(ignoreMissing);
    }
    const handle = await open(path, valid ? "r+" : "wx+", 0o644).catch((error: NodeJS.ErrnoException) => {
      // Gone or come since we looked: another process is at work where the lock does nothing.
      if (error.code === "EEXIST" || error.code === "ENOENT") throw owned(file.path, undefined);
      throw error;
    });
    try {
      if (!valid) {
        await preallocate(handle, path, file.size);
      }
      // Syncs the directory too. The header need not be durable before the first record, which is synced after it.
      const { journal, records } = await Journal.open(journalPath);
      if (!valid) await journal.append(head, { durable: false });
      await journal.append({ o: me }, { durable: false });
      await requireFirstLiveOwner(journalPath, me, file.path);
      const entries = records.slice(1).flatMap((entry) => record.safeParse(entry).data ?? []);
      return new PartFile(path, file, { handle, journal, records: entries }, options);
    } catch (error) {
      await handle.close().catch(() => undefined);
      throw error;
    }
  }

  get segments(): number {
    return this.state.length;
  }

  start(segment: number): number {
    return segment * this.segmentBytes;
  }

  length(segment: number): number {
    return Math.min(this.segmentBytes, this.file.size - this.start(segment));
  }

  /** Writes all of `data` at a position. */
  write(data: Buffer, position: number): Promise<void> {
    const write = this.#writeAll(data, position);
    const settled = write
      .catch(() => undefined)
      .then(() => {
        this.#writes.delete(settled);
      });
    this.#writes.add(settled);
    return write;
  }

  async #writeAll(data: Buffer, position: number): Promise<void> {
    let done = 0;
    while (done < data.length) {
      const { bytesWritten } = await this.#disk.write(() =>
        this.#handle.write(data, done, data.length - done, position + done),
      );
      done += bytesWritten;
    }
  }

  /** Every byte of the segment has been written; it becomes durable with the next sync, which is started if none runs. */
  markWritten(segment: number, crc: number): void {
    this.state[segment] = SEGMENT.written;
    this.crc[segment] = crc;
    this.#unsynced.push(segment);
    this.#checkpoint ??= this.#sync()
      .catch(this.#onError)
      .finally(() => {
        this.#checkpoint = undefined;
      });
  }

  /** Takes back segments that turned out damaged: they are missing again, now and after a restart. */
  async invalidate(segments: readonly number[]): Promise<void> {
    await this.settle();
    const [mine, there] = await Promise.all([this.#handle.stat(), stat(this.path).catch(() => undefined)]);
    if (mine.ino !== there?.ino) throw owned(this.file.path, undefined); // replaced under our feet
    for (const segment of segments) {
      this.state[segment] = SEGMENT.missing;
      this.adopted.delete(segment);
      await this.#record({ x: segment }, segment === segments.at(-1));
    }
  }

  /** Resolves when all writes are done and what was marked is in the journal (or the sync has failed and been reported). */
  async settle(): Promise<void> {
    await Promise.all(this.#writes);
    await setImmediate(); // a segment is marked right after its last write
    while (this.#checkpoint) await this.#checkpoint;
  }

  /** Everything on the disk, for publishing. */
  async sync(): Promise<void> {
    await this.settle();
    await this.#disk.sync(() => this.#handle.sync());
  }

  async close(): Promise<void> {
    await this.settle();
    await this.#journal.close();
    await this.#handle.close();
  }

  /** The journal is of no use once the file is published. */
  async discardJournal(): Promise<void> {
    await unlink(this.#journal.path).catch(ignoreMissing);
  }

  async #sync(): Promise<void> {
    while (this.#unsynced.length > 0) {
      const batch = this.#unsynced;
      this.#unsynced = [];
      await this.#disk.sync(() => this.#handle.datasync());
      for (const segment of batch) {
        const line = { s: segment, n: this.length(segment), c: hex8(this.crc[segment]!) };
        await this.#record(line, segment === batch.at(-1));
      }
      for (const segment of batch) {
        if (this.state[segment] === SEGMENT.written) this.state[segment] = SEGMENT.durable;
        this.#onDurable(this.length(segment));
      }
    }
  }

  #record(line: object, durable: boolean): Promise<void> {
    return this.#disk.sync(() => this.#journal.append(line, { durable }));
  }

  #replay(entry: z.infer<typeof record>): void {
    if ("o" in entry) return;
    const segment = "s" in entry ? entry.s : entry.x;
    if (segment >= this.segments) return;
    if (!("s" in entry)) {
      this.state[segment] = SEGMENT.missing;
      this.adopted.delete(segment);
    } else if (entry.n === this.length(segment) && /^[0-9a-f]{8}$/.test(entry.c)) {
      this.state[segment] = SEGMENT.durable;
      this.crc[segment] = Number.parseInt(entry.c, 16);
      if (entry.a) this.adopted.add(segment);
    }
  }
}

export interface PartOptions {
  segmentBytes: number;
  disk: DiskQueue;
  /** So many bytes are safe now. */
  onDurable: (bytes: number) => void;
  /** A sync in the background failed. */
  onError: (error: unknown) => void;
}

/** Bytes that are still to be allocated on the disk for a file, given its part file as it stands. */
export async function missingBytes(directory: string, file: SnapshotFile): Promise<number> {
  const part = await stat(join(directory, `${partName(file)}.part`)).catch(() => undefined);
  return Math.max(0, file.size - (part ? part.blocks * 512 : 0));
}

/** The journal of an adopted part file, written at once: its first segments count, with these CRC-32s. */
export async function writeAdoptedJournal(
  directory: string,
  file: SnapshotFile,
  segmentBytes: number,
  crcs: readonly number[],
): Promise<void> {
  const { journal } = await Journal.open(join(directory, `${partName(file)}.journal`));
  const { hash } = expectedHash(file);
  await journal.append({ v: 1, path: file.path, size: file.size, hash, seg: segmentBytes });
  for (const [s, crc] of crcs.entries()) {
    const n = Math.min(segmentBytes, file.size - s * segmentBytes);
    await journal.append({ s, n, c: hex8(crc), a: true }, { durable: s === crcs.length - 1 });
  }
  await journal.close();
}

const hex8 = (value: number) => value.toString(16).padStart(8, "0");

function sameHeader(found: unknown, wanted: object): boolean {
  const parsed = header.safeParse(found);
  return parsed.success && JSON.stringify(parsed.data) === JSON.stringify(header.parse(wanted));
}

function ignoreMissing(error: unknown): void {
  if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
}
