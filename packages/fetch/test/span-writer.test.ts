import { setImmediate } from "node:timers/promises";
import { crc32 } from "node:zlib";
import { describe, expect, it } from "vitest";
import { BufferPool, RiskBudget } from "../src/disk.ts";
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
    start: (segment: number) => segment * SEGMENT,
    length: () => SEGMENT,
    write: (data: Buffer, position: number) =>
      new Promise<void>((resolve, reject) => {
        const end = async (error?: Error) => {
          if (error) reject(error);
          else resolve();
          await setImmediate();
        };
        writes.push({ position, data: Buffer.from(data), end });
      }),
    prefix: () => undefined,
    markPrefix: (segment: number, { bytes, crc }: { bytes: number; crc: number }) =>
      marks.push(`${segment}: ${bytes} ${crc}`),
    markWritten: (segment: number, crc: number) => marks.push(`${segment}: all ${crc}`),
    checkpoint: async () => undefined,
  };
  const writer = new SpanWriter(
    run as unknown as Run,
    target,
    { start: 0, end: 2 * SEGMENT },
    () => undefined,
  );
  const transfer = { bytes: 0, waiting: undefined } as ActiveTransfer;
  return { run, writer, writes, marks, failures, push: (data: Buffer) => writer.push(data, transfer) };
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
    const { writer, push, writes, marks } = writing();
    await push(body.subarray(0, 260));
    writer.flush();
    writer.restart();
    await push(body.subarray(0, 480));
    writer.flush();
    for (const write of writes) await write.end();
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
