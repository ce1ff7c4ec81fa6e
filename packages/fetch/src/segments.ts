import { type FileHandle, stat, unlink } from "node:fs/promises";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { crc32 } from "node:zlib";
import { type Journal, type SnapshotFile, throwIfAborted } from "@k3/stage";
import type { DiskQueue } from "./disk.ts";
import { ignoreMissing, type OpenedPart, openPart } from "./open-part.ts";
import { owned } from "./owner.ts";
import { type Prefix, prefixRecord, SEGMENT, segmentRecord } from "./part-journal.ts";
import { partName } from "./paths.ts";

/**
 * A file under construction: the part file, of full size from the start, and beside it the journal that alone says
 * which segments of it count, and how much of each unfinished one. Data is synced before its record is appended, and the
 * record synced before it is relied on.
 */
export class PartFile {
  readonly path: string;
  readonly file: SnapshotFile;
  readonly segmentBytes: number;
  readonly state: Uint8Array;
  readonly crc: Uint32Array;
  readonly adopted: Set<number>;
  /** Bytes that the journal vouched for when the file was opened. */
  readonly resumedBytes: number;
  /** Those of them that belong to unfinished segments, by segment. */
  readonly resumedPrefixes = new Map<number, number>();
  /** Why what an earlier run left of the file could not be gone on from, if there was something. */
  readonly discarded: string | undefined;
  readonly #handle: FileHandle;
  readonly #journal: Journal;
  readonly #disk: DiskQueue;
  readonly #onDurable: (bytes: number) => void;
  readonly #onError: (error: unknown) => void;
  readonly #writes = new Set<Promise<void>>();
  /** What has been written of unfinished segments, and how many bytes of it the journal knows of. */
  readonly #prefixes: Map<number, Prefix>;
  readonly #recorded = new Map<number, number>();
  /** Segments written since the last sync, with the bytes that become safe by it. */
  #unsynced: { segment: number; risked: number }[] = [];
  /** The sync at work, and the one that begins after it. What is marked now is sure to be covered by the latter alone. */
  #syncing: Promise<void> | undefined;
  #nextSync: Promise<void> | undefined;
  #syncedAt = performance.now();
  /** After a sync that failed, a later one may succeed without the lost pages: nothing is recorded any more. */
  #syncFailed = false;

  private constructor(file: SnapshotFile, opened: OpenedPart, options: PartOptions) {
    this.path = opened.path;
    this.file = file;
    this.segmentBytes = options.segmentBytes;
    this.state = opened.replayed.state;
    this.crc = opened.replayed.crc;
    this.adopted = opened.replayed.adopted;
    this.#prefixes = opened.replayed.prefixes;
    this.discarded = opened.discarded;
    this.#handle = opened.handle;
    this.#journal = opened.journal;
    this.#disk = options.disk;
    this.#onDurable = options.onDurable;
    this.#onError = options.onError;
    let resumed = 0;
    for (let s = 0; s < this.segments; s++) if (this.state[s] === SEGMENT.durable) resumed += this.length(s);
    for (const [segment, { bytes }] of this.#prefixes) {
      resumed += bytes;
      this.resumedPrefixes.set(segment, bytes);
      this.#recorded.set(segment, bytes);
    }
    this.resumedBytes = resumed;
  }

  /**
   * Opens the part file of a file, or makes it, with what its journal vouches for; `discarded` says why that was not usable.
   * Throws E_LOCKED when a live process owns it, E_SPACE.
   */
  static open(directory: string, file: SnapshotFile, options: PartOptions): Promise<PartFile> {
    return options.disk.sync(async () => {
      const opened = await openPart(directory, file, options.segmentBytes);
      return new PartFile(file, opened, options);
    });
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

  /** What is there of an unfinished segment. */
  prefix(segment: number): Prefix | undefined {
    return this.#prefixes.get(segment);
  }

  /** So much of a segment has been written; a checkpoint records it. */
  markPrefix(segment: number, prefix: Prefix): void {
    this.#prefixes.set(segment, prefix);
  }

  /**
   * Reads back what is there of an unfinished segment. When it does not have its CRC-32 (a flipped or torn byte), the
   * segment starts over; gives the bytes lost by that.
   */
  async checkPrefix(segment: number, signal: AbortSignal): Promise<number> {
    const prefix = this.#prefixes.get(segment);
    if (!prefix) return 0;
    const buffer = Buffer.allocUnsafe(Math.min(1024 * 1024, prefix.bytes));
    let crc = 0;
    for (let done = 0; done < prefix.bytes; ) {
      throwIfAborted(signal);
      const want = Math.min(buffer.length, prefix.bytes - done);
      const { bytesRead } = await this.#disk.write(() =>
        this.#handle.read(buffer, 0, want, this.start(segment) + done),
      );
      if (bytesRead === 0) break;
      crc = crc32(buffer.subarray(0, bytesRead), crc);
      done += bytesRead;
    }
    if (crc === prefix.crc) return 0;
    this.#prefixes.delete(segment);
    this.#recorded.delete(segment);
    return prefix.bytes;
  }

  /**
   * Every byte of the segment has been written; it becomes durable with the next sync.
   * `risked`: the bytes that a kill before that would cost.
   */
  markWritten(segment: number, crc: number, risked: number): void {
    this.state[segment] = SEGMENT.written;
    this.crc[segment] = crc;
    this.#prefixes.delete(segment);
    this.#recorded.delete(segment);
    this.#unsynced.push({ segment, risked });
    void this.#syncAgain();
  }

  /** Makes what has been written of unfinished segments durable, if there is anything new. */
  async checkpoint(): Promise<void> {
    if (this.#unrecorded().length > 0) await this.#syncAgain();
  }

  /** As `checkpoint`, in the background, when none runs and the last sync is longer ago than this. */
  checkpointAfter(ms: number): void {
    if (!this.#syncing && performance.now() - this.#syncedAt >= ms) void this.checkpoint();
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

  /** Resolves when the writes begun are done and the segments marked are in the journal (or a sync has failed and been reported). */
  async settle(): Promise<void> {
    await Promise.all(this.#writes);
    await setImmediate(); // what was written is marked right after the write
    await (this.#nextSync ?? this.#syncing);
  }

  /** Everything on the disk, for publishing. */
  async sync(): Promise<void> {
    await this.settle();
    await this.#disk.sync(() => this.#handle.sync());
  }

  /** Closes it, after all that was written has been made durable. */
  async close(): Promise<void> {
    await this.settle();
    await this.checkpoint();
    await this.#journal.close();
    await this.#handle.close();
  }

  /** The journal is of no use once the file is published. */
  async discardJournal(): Promise<void> {
    await unlink(this.#journal.path).catch(ignoreMissing);
  }

  /** The first sync begun from now on: resolves when it is done, or has failed and been reported. */
  #syncAgain(): Promise<void> {
    this.#nextSync ??= this.#syncAfter(this.#syncing);
    return this.#nextSync;
  }

  async #syncAfter(before: Promise<void> | undefined): Promise<void> {
    await before;
    // In the same turn as the sync takes what it covers, or something marked in between would wait for ever.
    this.#syncing = this.#nextSync;
    this.#nextSync = undefined;
    try {
      if (!this.#syncFailed) await this.#syncOnce();
    } catch (error) {
      this.#syncFailed = true;
      this.#onError(error);
    } finally {
      if (!this.#nextSync) this.#syncing = undefined;
    }
  }

  /** What has been written of unfinished segments since it was recorded. */
  #unrecorded(): [number, Prefix][] {
    return [...this.#prefixes].filter(([segment, { bytes }]) => bytes !== this.#recorded.get(segment));
  }

  async #syncOnce(): Promise<void> {
    const batch = this.#unsynced;
    this.#unsynced = [];
    // The sync covers them, too, so to record them costs a line each.
    const prefixes = this.#unrecorded();
    await this.#disk.sync(() => this.#handle.datasync());
    this.#syncedAt = performance.now();
    const lines = [
      ...prefixes.map(([segment, prefix]) => prefixRecord(segment, prefix)),
      ...batch.map(({ segment }) => segmentRecord(segment, this.length(segment), this.crc[segment]!)),
    ];
    for (const [index, line] of lines.entries()) await this.#record(line, index === lines.length - 1);
    for (const [segment, { bytes }] of prefixes)
      if (this.#prefixes.has(segment)) this.#recorded.set(segment, bytes);
    for (const { segment, risked } of batch) {
      if (this.state[segment] === SEGMENT.written) this.state[segment] = SEGMENT.durable;
      this.#onDurable(risked);
    }
  }

  #record(line: object, durable: boolean): Promise<void> {
    return this.#disk.sync(() => this.#journal.append(line, { durable }));
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
