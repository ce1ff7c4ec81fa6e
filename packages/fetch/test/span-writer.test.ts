import { setImmediate } from "node:timers/promises";
import { crc32 } from "node:zlib";
import { describe, expect, it } from "vitest";
import { BufferPool, RiskBudget } from "../src/disk.ts";
import { SEGMENT as JOURNALED, type Prefix } from "../src/part-journal.ts";
import type { ActiveTransfer, Run } from "../src/run.ts";
import { SpanWriter } from "../src/span-writer.ts";

const BUFFER = 100;
const SEGMENT = 350;
const body = Buffer.from(Array.from({ length: 2 * SEGMENT }, (_, i) => i * 7));

/** A writer over two segments whose writes end when the test says so. */
function writing(riskLimit = 10_000) {
  const marks: string[] = [];
  const failures: unknown[] = [];
  const writes: { position: number; data: Buffer; end: (error?: Error) => Promise<void> }[] = [];
  const file = Buffer.alloc(2 * SEGMENT);
  const prefixes = new Map<number, Prefix>();
  const run = {
    pool: new BufferPool(100, BUFFER),
    risk: new RiskBudget(riskLimit),
    report: { meter: { add: () => undefined } },
    diskWaitMs: 0,
    fail: (error: unknown) => failures.push(error),
  };
  const target = {
    segmentBytes: SEGMENT,
    state: new Uint8Array(2),
    // As if durable at once.
    checkpoint: async () => undefined,
    start: (segment: number) => segment * SEGMENT,
    length: () => SEGMENT,
    write: (data: Buffer, position: number) =>
      new Promise<void>((resolve, reject) => {
        let ended = false;
        const end = async (error?: Error) => {
          if (ended) return;
          ended = true;
          if (error) reject(error);
          else {
            data.copy(file, position);
            resolve();
          }
          await setImmediate();
        };
        writes.push({ position, data: Buffer.from(data), end });
      }),
    prefix: (segment: number) => prefixes.get(segment),
    markPrefix: (segment: number, prefix: Prefix) => {
      prefixes.set(segment, prefix);
      marks.push(`${segment}: ${prefix.bytes} ${prefix.crc}`);
    },
    markWritten: (segment: number, crc: number, risked: number) => {
      target.state[segment] = JOURNALED.written;
      run.risk.release(risked);
      marks.push(`${segment}: all ${crc}`);
    },
  };
  const writer = new SpanWriter(
    run as unknown as Run,
    target,
    { start: 0, end: 2 * SEGMENT },
    () => undefined,
  );
  const transfer = { bytes: 0, waiting: undefined } as ActiveTransfer;
  const push = (data: Buffer) => writer.push(data, transfer);
  const endAll = async () => {
    for (const write of writes) await write.end();
  };
  /** Bytes that count against the risk budget. */
  const risked = () => {
    let free = 0;
    while (run.risk.fits(free + 1)) free++;
    return riskLimit - free;
  };
  return { run, target, writer, writes, file, marks, failures, push, endAll, risked };
}

const sum = (from: number, to: number) => crc32(body.subarray(from, to));

describe("writing what arrives", () => {
  it("marks nothing beyond a write that has not ended, in whatever order they end", async () => {
    const { push, writes, marks, failures } = writing();
    await push(body.subarray(0, 420));
    expect(writes.map((w) => w.position)).toEqual([0, 100, 200, 300]);
    expect(Buffer.concat(writes.map((w) => w.data)).equals(body.subarray(0, 350))).toBe(true);
    await writes[3]!.end();
    await writes[1]!.end();
    expect(marks).toEqual([]);
    await writes[0]!.end();
    expect(marks).toEqual([`0: 100 ${sum(0, 100)}`, `0: 200 ${sum(0, 200)}`]);
    await writes[2]!.end();
    expect(marks.slice(2)).toEqual([`0: 300 ${sum(0, 300)}`, `0: all ${sum(0, 350)}`]);
    expect(failures).toEqual([]);
  });

  it("marks nothing from a failed write on, and ends the run with its error", async () => {
    const { push, writes, marks, failures } = writing();
    await push(body.subarray(0, 350));
    const error = new Error("ENOSPC");
    await writes[0]!.end();
    await writes[1]!.end(error);
    await writes[2]!.end();
    await writes[3]!.end();
    expect(marks).toEqual([`0: 100 ${sum(0, 100)}`]);
    expect(failures[0]).toBe(error);
  });

  it("a connection that breaks in the middle of a buffer, of a segment, costs nothing; each segment has its own sum", async () => {
    const { writer, push, writes, marks } = writing();
    for (const [from, to] of [
      [0, 1],
      [1, 130],
      [130, 349],
      [349, 351],
      [351, 700],
    ] as const) {
      await push(body.subarray(from, to));
      writer.flush();
      expect(writer.position).toBe(to);
    }
    for (const write of writes) await write.end();
    for (const { position, data } of writes)
      expect(data.equals(body.subarray(position, position + data.length))).toBe(true);
    expect(marks.filter((mark) => mark.includes("all"))).toEqual([
      `0: all ${sum(0, 350)}`,
      `1: all ${sum(350, 700)}`,
    ]);
  });

  it("a response that starts over writes only what is not there yet", async () => {
    const { writer, push, writes, marks, endAll, risked } = writing();
    await push(body.subarray(0, 260));
    const restarted = writer.restart();
    await endAll();
    await restarted;
    await push(body.subarray(0, 480));
    const left = writer.leave();
    await endAll();
    await left;
    expect(risked()).toBe(0);
    expect(writes.map((w) => [w.position, w.data.length])).toEqual([
      [0, 100],
      [100, 100],
      [200, 60],
      [260, 90],
      [350, 100],
      [450, 30],
    ]);
    expect(marks.at(-1)).toBe(`1: 130 ${sum(350, 480)}`);
  });

  it("a response that starts over while writes of a finished segment are under way damages nothing", async () => {
    const { writer, push, writes, file, failures, endAll, risked } = writing();
    await push(body.subarray(0, 360));
    for (const write of writes.slice(0, 3)) await write.end();
    writer.flush();
    // The disk still has the end of segment 0 when the next body gets there.
    const again = Promise.resolve(writer.restart()).then(() => push(body.subarray(0, 320)));
    await setImmediate();
    for (const write of writes.slice(3)) await write.end();
    await again;
    await push(body.subarray(320));
    const left = writer.leave();
    await endAll();
    await left;
    expect(file.equals(body)).toBe(true);
    expect(failures).toEqual([]);
    expect(risked()).toBe(0);
  });

  it("what it holds of a segment that has come to be there is dropped", async () => {
    const { target, writer, push, writes, file, endAll, risked } = writing();
    await push(body.subarray(0, 330));
    await endAll();
    body.copy(file, 0, 0, SEGMENT);
    target.state[0] = JOURNALED.written;
    await push(body.subarray(330, 500));
    expect(writes.map((w) => [w.position, w.data.length]).slice(3)).toEqual([[350, 100]]);
    await push(body.subarray(500));
    await endAll();
    await writer.leave();
    expect(file.equals(body)).toBe(true);
    expect(risked()).toBe(0);
  });

  it("a segment taken back in the middle of a pass is not given the sum of its tail", async () => {
    const { target, writer, push, writes, marks, endAll } = writing();
    target.state[0] = JOURNALED.written;
    await push(body.subarray(0, 200));
    target.state[0] = JOURNALED.missing;
    await push(body.subarray(200));
    await endAll();
    await writer.leave();
    expect(Math.min(...writes.map((w) => w.position))).toBe(SEGMENT);
    expect(marks.filter((mark) => mark.includes("all"))).toEqual([`1: all ${sum(350, 700)}`]);
  });

  it("a span left when its last segment is on its way to the disk gives back what it risked once", async () => {
    const { writer, push, endAll, risked } = writing();
    await push(body);
    const left = writer.leave();
    expect(risked()).toBe(2 * SEGMENT);
    await endAll();
    await left;
    expect(risked()).toBe(0);
    expect(writer.position).toBe(2 * SEGMENT);
  });

  it("stopped while it waits for the risk budget, it writes nothing it does not have", async () => {
    const { run, writer, push, writes } = writing(250);
    const pushed = push(body.subarray(0, 300)).catch((error: Error) => error.message);
    await setImmediate();
    run.risk.cancel(new Error("stopped"));
    expect(await pushed).toBe("stopped");
    writer.flush();
    expect(writes.map((w) => [w.position, w.data.length])).toEqual([
      [0, 100],
      [100, 100],
    ]);
    expect(writer.position).toBe(200);
  });
});
