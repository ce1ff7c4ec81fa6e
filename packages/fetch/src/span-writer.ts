import { crc32 } from "node:zlib";
import type { ActiveTransfer, Run } from "./run.ts";
import { SEGMENT } from "./segments.ts";

/** What the bytes are written to: a part file, or the replacement of a damaged chunk. */
export interface SpanTarget {
  readonly segmentBytes: number;
  readonly state: Uint8Array;
  start(segment: number): number;
  length(segment: number): number;
  write(data: Buffer, position: number): Promise<void>;
  markWritten(segment: number, crc: number): void;
}

/**
 * Takes the bytes of a span in order, from as many responses as it needs, and puts them into the part file: copied into
 * a buffer of the pool, written when it is full, each segment marked when its last write is done. What was received
 * before a connection broke is kept: the next one goes on at `position`.
 */
export class SpanWriter {
  readonly end: number;
  /** The next byte wanted. */
  position: number;
  readonly #run: Run;
  readonly #target: SpanTarget;
  readonly start: number;
  readonly #onSegment: (segment: number) => void;
  #buffer: Buffer | undefined;
  #filled = 0;
  #room = 0;
  #crc = 0;
  /** Bytes of the segment at work that count against the risk budget. */
  #risked = 0;
  #writes: Promise<void>[] = [];

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
      const wanted = Math.min(chunk.length - at, segmentEnd - this.position);
      if (this.#target.state[segment]! >= SEGMENT.written) {
        // Only when a server that cannot do ranges sends the file from the start: these bytes are here already.
        this.position += wanted;
        at += wanted;
        continue;
      }
      if (!this.#buffer) await this.#nextBuffer(segmentEnd - this.position, transfer);
      const bytes = Math.min(wanted, this.#room - this.#filled);
      chunk.copy(this.#buffer!, this.#filled, at, at + bytes);
      this.#filled += bytes;
      this.position += bytes;
      at += bytes;
      this.#run.report.meter.add(bytes);
      if (this.#filled === this.#room) this.#writeOut();
      if (this.position === segmentEnd) this.#endSegment(segment);
    }
  }

  /** Writes what the buffer holds, so that a broken connection costs nothing. */
  flush(): void {
    if (this.#buffer) this.#writeOut();
  }

  /** Gives up the segment at work and goes back to its beginning. Waits for writes under way, so that none comes late. */
  async abandon(): Promise<void> {
    this.flush();
    await Promise.allSettled(this.#writes);
    this.#run.report.meter.add(-this.#risked);
    this.#run.risk.release(this.#risked);
    this.#risked = 0;
    this.#crc = 0;
    this.#writes = [];
    this.position -= this.position % this.#target.segmentBytes;
  }

  /** For a response that starts at the beginning of the span again. */
  async restart(): Promise<void> {
    if (this.position === this.start) return;
    await this.abandon();
    this.position = this.start;
  }

  async #nextBuffer(segmentLeft: number, transfer: ActiveTransfer): Promise<void> {
    const { pool, risk } = this.#run;
    const room = Math.min(pool.bufferBytes, segmentLeft);
    const buffer = pool.acquire();
    if (buffer instanceof Promise || !risk.fits(room)) {
      const from = performance.now();
      transfer.waiting = true;
      this.#buffer = await buffer;
      while (!risk.fits(room)) await risk.changed();
      transfer.waiting = false;
      this.#run.diskWaitMs += performance.now() - from;
    } else this.#buffer = buffer;
    risk.add(room);
    this.#risked += room;
    this.#room = room;
    this.#filled = 0;
  }

  #writeOut(): void {
    const { pool, risk } = this.#run;
    const buffer = this.#buffer!;
    const data = buffer.subarray(0, this.#filled);
    risk.release(this.#room - this.#filled);
    this.#risked -= this.#room - this.#filled;
    this.#crc = crc32(data, this.#crc);
    this.#buffer = undefined;
    const write = this.#target.write(data, this.position - this.#filled).finally(() => pool.release(buffer));
    // A full disk stops the run at once; whoever waits for this write sees the same error.
    write.catch((error) => this.#run.fail(error));
    this.#writes.push(write);
  }

  #endSegment(segment: number): void {
    const crc = this.#crc;
    const writes = this.#writes;
    this.#crc = 0;
    this.#writes = [];
    this.#risked = 0;
    Promise.all(writes).then(
      () => {
        this.#target.markWritten(segment, crc);
        this.#onSegment(segment);
      },
      () => undefined, // the write has failed the run
    );
  }
}
