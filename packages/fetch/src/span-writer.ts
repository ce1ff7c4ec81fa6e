import { crc32 } from "node:zlib";
import { StageError } from "@k3/stage";
import { type Prefix, SEGMENT } from "./part-journal.ts";
import type { ActiveTransfer, Run } from "./run.ts";

/** What the bytes are written to: a part file, or the replacement of a damaged chunk. */
export interface SpanTarget {
  readonly segmentBytes: number;
  readonly state: Uint8Array;
  start(segment: number): number;
  length(segment: number): number;
  write(data: Buffer, position: number): Promise<void>;
  /** What is there of an unfinished segment, to be gone on from. */
  prefix(segment: number): Prefix | undefined;
  markPrefix(segment: number, prefix: Prefix): void;
  /** `risked`: how many bytes of it count against the risk budget until it is durable. */
  markWritten(segment: number, crc: number, risked: number): void;
  /** Resolves when the prefixes marked are durable. */
  checkpoint(): Promise<void>;
}

/**
 * Takes the bytes of a span in order, from as many responses as it needs, and puts them into the part file: copied into
 * a buffer of the pool, written when it is full, each segment marked when its last write is done and until then its
 * prefix. What was received before a connection broke is kept: the next one goes on at `position`.
 */
export class SpanWriter {
  readonly start: number;
  readonly end: number;
  /** The next byte wanted. */
  position: number;
  /** Bytes taken in that were not there yet: those passed over in a response that starts over are no progress. */
  received = 0;
  readonly #run: Run;
  readonly #target: SpanTarget;
  readonly #onSegment: (segment: number) => void;
  #buffer: Buffer | undefined;
  #filled = 0;
  #room = 0;
  /** The segment at work, up to where it is there, and the CRC-32 of what has been written out. */
  #segment = -1;
  #reached = 0;
  #crc = 0;
  /** Bytes of the segment at work that count against the risk budget. */
  #risked = 0;
  /** Resolves when all that was written out is in the file and marked, in order. */
  #written: Promise<void> = Promise.resolve();

  constructor(
    run: Run,
    target: SpanTarget,
    span: { start: number; end: number },
    onSegment: (segment: number) => void,
  ) {
    this.#run = run;
    this.#target = target;
    this.start = span.start;
    this.position = span.start;
    this.end = span.end;
    this.#onSegment = onSegment;
  }

  /** Takes in a chunk; waits when the disk is behind. */
  async push(chunk: Buffer, transfer: ActiveTransfer): Promise<void> {
    for (let at = 0; at < chunk.length; ) {
      const segment = Math.floor(this.position / this.#target.segmentBytes);
      const segmentEnd = this.#target.start(segment) + this.#target.length(segment);
      const there = this.#there(segment);
      if (this.position !== there) {
        // Only when a server that cannot do ranges sends the file from the start. A segment that was taken back while it
        // was passed over has no bytes in front of these: it is passed over to its end and left to the next connection.
        if (this.#buffer) this.#discard();
        const to = this.position < there ? there : segmentEnd;
        const passed = Math.min(chunk.length - at, to - this.position);
        this.position += passed;
        at += passed;
        continue;
      }
      if (!this.#buffer) await this.#nextBuffer(segmentEnd - this.position, transfer);
      const bytes = Math.min(chunk.length - at, this.#room - this.#filled);
      chunk.copy(this.#buffer!, this.#filled, at, at + bytes);
      this.#filled += bytes;
      this.position += bytes;
      this.#reached = this.position;
      at += bytes;
      this.received += bytes;
      this.#run.lastByteAt = performance.now();
      this.#run.report.meter.add(bytes);
      if (this.#filled === this.#room) this.#writeOut();
    }
  }

  /** Writes what the buffer holds, so that a broken connection costs nothing. */
  flush(): void {
    if (this.#buffer) this.#writeOut();
  }

  /** Passes over what is there of the first segment. */
  goOn(): void {
    const segment = Math.floor(this.start / this.#target.segmentBytes);
    this.position = Math.max(this.start, this.#there(segment));
  }

  /**
   * For a response that starts at the beginning of the span again: what is there is passed over as it comes. Waits for the
   * writes under way, since what is there is known only when they are done.
   */
  async restart(): Promise<void> {
    await this.leave();
    this.#segment = -1;
    this.position = this.start;
  }

  /** Puts the span aside, all that was received made durable. */
  async leave(): Promise<void> {
    this.flush();
    await this.#written.catch(() => undefined); // the write has failed the run
    await this.#target.checkpoint();
    this.#run.risk.release(this.#risked);
    this.#risked = 0;
  }

  /** The position up to which the bytes of a segment are there. */
  #there(segment: number): number {
    const start = this.#target.start(segment);
    if (this.#target.state[segment]! >= SEGMENT.written) return start + this.#target.length(segment);
    if (segment !== this.#segment) {
      const prefix = this.#target.prefix(segment);
      this.#segment = segment;
      this.#reached = start + (prefix?.bytes ?? 0);
      this.#crc = prefix?.crc ?? 0;
      // Nothing, unless the segment before was left unfinished because it had been taken back.
      this.#run.risk.release(this.#risked);
      this.#risked = 0;
    }
    return this.#reached;
  }

  async #nextBuffer(segmentLeft: number, transfer: ActiveTransfer): Promise<void> {
    const { pool, risk } = this.#run;
    const room = Math.min(pool.bufferBytes, segmentLeft);
    let buffer = pool.acquire();
    if (buffer instanceof Promise || !risk.fits(room)) {
      const from = performance.now();
      transfer.waiting = "disk";
      buffer = await buffer;
      while (!risk.fits(room)) await risk.changed();
      transfer.waiting = undefined;
      this.#run.diskWaitMs += performance.now() - from;
    }
    // Only now, as the end of the run ends both waits: a buffer without its measures would be flushed as if it were full.
    this.#buffer = buffer;
    this.#room = room;
    this.#filled = 0;
    this.#risked += room;
    risk.add(room);
  }

  /** Drops what the buffer holds of a segment that has come to be there meanwhile. */
  #discard(): void {
    const { pool, risk } = this.#run;
    pool.release(this.#buffer!);
    this.#buffer = undefined;
    risk.release(this.#room);
    this.#risked -= this.#room;
  }

  #writeOut(): void {
    const { pool, risk } = this.#run;
    const buffer = this.#buffer!;
    const segment = this.#segment;
    const from = this.position - this.#filled;
    const segmentStart = this.#target.start(segment);
    if (from < segmentStart || this.position > segmentStart + this.#target.length(segment)) {
      throw new StageError("E_DEFECT", `bytes ${from} to ${this.position} do not lie in segment ${segment}`);
    }
    const data = buffer.subarray(0, this.#filled);
    this.#buffer = undefined;
    risk.release(this.#room - this.#filled);
    this.#risked -= this.#room - this.#filled;
    this.#crc = crc32(data, this.#crc);
    const prefix = { bytes: this.position - segmentStart, crc: this.#crc };
    const risked = this.#risked;
    const whole = prefix.bytes === this.#target.length(segment);
    if (whole) this.#risked = 0; // the segment's mark releases it
    const write = this.#target.write(data, from).finally(() => pool.release(buffer));
    this.#written = Promise.all([this.#written, write]).then(() => {
      if (!whole) return this.#target.markPrefix(segment, prefix);
      this.#target.markWritten(segment, prefix.crc, risked);
      this.#onSegment(segment);
    });
    // A full disk stops the run at once; whoever waits for this write sees the same error.
    this.#written.catch((error) => this.#run.fail(error));
  }
}
