import { type FileHandle, open } from "node:fs/promises";
import { setTimeout } from "node:timers/promises";
import type { StageEvent } from "@k3/stage";
import { syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  atEnd,
  expectComplete,
  failure,
  KIB,
  leftovers,
  MIB,
  run,
  sampleFiles,
  sentFor,
  serve,
  shardName,
  temporary,
} from "./support.ts";

const SHARD = "model.safetensors";
const one = (bytes = 4 * MIB) => [syntheticFile(SHARD, bytes, { seed: 3 })];

/** The first write of a part file at this position takes so many milliseconds longer. */
async function lateWrite(at: number, ms: number, begun: () => void): Promise<{ happened: boolean }> {
  const probe = await open("/dev/null");
  const files = Object.getPrototypeOf(probe) as FileHandle;
  await probe.close();
  const late = { happened: false };
  const { write } = files;
  files.write = async function (this: FileHandle, ...args: unknown[]) {
    const [, , length, position] = args as [Buffer, number, number, number];
    if (position === at && length > MIB && !late.happened) {
      late.happened = true;
      begun();
      await setTimeout(ms);
    }
    return Reflect.apply(write, this, args);
  } as typeof write;
  atEnd(async () => {
    files.write = write;
  });
  return late;
}

describe("answers that are not what was asked for (hub.md section 7 and 5.2)", () => {
  it("row 3: asks for no content coding, so the CDN keeps its ranges", async () => {
    const files = sampleFiles(1 * MIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ gzipWhenAsked: true });
    await run(hub, dir);
    await expectComplete(dir, files);
    expect(hub.requests.map((r) => r.acceptEncoding)).toEqual(hub.requests.map(() => "identity"));
  });

  it("row 3: a 200 for a range is dropped at once, and then the exact range is fetched", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    // On a link of 4 MiB/s, where what is dropped late would show in what the server could send.
    hub.setFaults({ ignoreRange: 1, bps: 4 * MIB });
    await run(hub, dir, { concurrency: 2 });
    await expectComplete(dir, files);
    const whole = hub.requests.find((r) => r.where === "cdn" && r.status === 200)!;
    expect(whole.bytesSent).toBeLessThan(1 * MIB);
  });

  it("row 3: a host that never honours ranges is read as one stream from the start", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ ignoreRange: true });
    await run(hub, dir, { concurrency: 4 });
    await expectComplete(dir, files);
    // And with cuts on top of that, what is there already is skipped, not written twice.
    const second = await temporary();
    hub.setFaults({ ignoreRange: true, cutAfter: { bytes: 3 * MIB, count: 5 } });
    await run(hub, second, { concurrency: 4 });
    await expectComplete(second, files);
  });

  it("row 3: a stream that starts over while the disk is behind damages nothing", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    // Cut right after the end of the first segment, whose write takes half as long as the next body needs to get there.
    hub.setFaults({ ignoreRange: true, cutAfter: { bytes: 2 * MIB + 1000 }, bps: 4 * MIB });
    const late = await lateWrite(0, 250, () => {
      hub.clearFaults();
      hub.setFaults({ ignoreRange: true, bps: 4 * MIB });
    });
    const { messages } = await run(hub, dir, { concurrency: 2, internals: { segmentBytes: 2 * MIB } });
    expect(late.happened).toBe(true);
    expect(messages.join("\n")).not.toContain("damaged");
    await expectComplete(dir, files);
  });

  it("row 3: a host without ranges that keeps cutting before anything new comes is given up with E_NETWORK", async () => {
    const hub = await serve(one());
    const dir = await temporary();
    const messages: string[] = [];
    const onEvent = (event: StageEvent) => {
      if (event.type === "log") messages.push(event.message);
    };
    // Bodies end after 2.5 and after 1 MiB in turn: a difference that would pass for progress. (It is read twice for each.)
    let reads = 0;
    const cutAfter = {
      get bytes() {
        return ++reads % 4 < 2 ? 1 * MIB : 2.5 * MIB;
      },
    };
    hub.setFaults({ ignoreRange: true, cutAfter });
    const timing = { giveUp: 1500, attempts: 3, progressBytes: 256 * KIB };
    const error = await failure(hub, dir, { concurrency: 1, onEvent, internals: { timing } });
    expect(error).toMatchObject({ code: "E_NETWORK", exit: 6 });
    expect(hub.struck("cutAfter")).toBeGreaterThan(4);
    expect(messages.join("\n")).toContain("its host keeps failing");
    hub.clearFaults();
    expect((await run(hub, dir)).result.resumed_bytes).toBe(2.5 * MIB);
    await expectComplete(dir, one());
  });

  it("row 4: a 200 that carries exactly the range asked for is the slice", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ rangeAs200: true });
    await run(hub, dir);
    await expectComplete(dir, files);
    expect(sentFor(hub, SHARD)).toBe(4 * MIB);
  });

  it("a 206 that starts earlier than asked is rejected, whatever its bytes", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ shiftRange: { count: 3, skip: 1, bytes: 4096 } });
    const { result } = await run(hub, dir);
    expect(hub.struck("shiftRange")).toBe(3);
    expect(result.downloaded_bytes).toBe(4 * MIB);
    await expectComplete(dir, files);
  });

  it("a host that shifts every range is given up with E_HUB, and nothing wrong is written", async () => {
    const hub = await serve(one());
    const dir = await temporary();
    hub.setFaults({ shiftRange: true });
    const error = await failure(hub, dir);
    expect(error).toMatchObject({ code: "E_HUB", exit: 6 });
    expect(error.message).toContain("Content-Range");
    hub.clearFaults();
    const { result } = await run(hub, dir);
    expect(result.downloaded_bytes + result.resumed_bytes).toBe(4 * MIB);
    await expectComplete(dir, one());
  });

  it("a host that shifts ranges for a while, on all connections at once, does not end the run", async () => {
    const hub = await serve(one());
    const dir = await temporary();
    hub.setFaults({ shiftRange: { count: 30 } });
    await run(hub, dir, { concurrency: 8 });
    expect(hub.struck("shiftRange")).toBe(30);
    await expectComplete(dir, one());
  });

  it("a wrong total in Content-Range is rejected", async () => {
    const hub = await serve(one());
    const dir = await temporary();
    hub.setFaults({ wrongTotal: 2 });
    await run(hub, dir);
    expect(hub.struck("wrongTotal")).toBe(2);
    await expectComplete(dir, one());
    hub.setFaults({ wrongTotal: true });
    const error = await failure(hub, await temporary());
    expect(error).toMatchObject({ code: "E_HUB", exit: 6 });
    expect(error.message).toContain(`/${4 * MIB + 1}"`);
  });

  it("a body without a length that ends properly, but not where its range does, is found out and mended", async () => {
    const hub = await serve(one());
    for (const [bytes, problem] of [
      [1000, "longer than announced"],
      [-1000, "ended 1000 bytes early"],
    ] as const) {
      const dir = await temporary();
      hub.setFaults({ wrongLength: { bytes, count: 3 } });
      const { events } = await run(hub, dir, { concurrency: 1 });
      const last = events.findLast((e) => e.type === "progress")!;
      expect(hub.struck("wrongLength")).toBe(3);
      expect(last.detail).toMatchObject({ retries: 3, last_problem: expect.stringContaining(problem) });
      await expectComplete(dir, one());
    }
    hub.setFaults({ wrongLength: { bytes: 1000, path: SHARD } });
    expect(await failure(hub, await temporary())).toMatchObject({ code: "E_HUB", exit: 6 });
  });

  it("a spurious 416 is answered with a fresh URL and another try", async () => {
    const hub = await serve(one());
    const dir = await temporary();
    hub.setFaults({ spurious416: 3 });
    await run(hub, dir);
    expect(hub.struck("spurious416")).toBe(3);
    await expectComplete(dir, one());
  });

  it("a changed ETag makes the Hub confirm the file before the new one is accepted", async () => {
    const hub = await serve(one());
    const dir = await temporary();
    hub.setFaults({ etagChangesMidFile: true });
    await run(hub, dir, { concurrency: 1 });
    await expectComplete(dir, one());
    expect(hub.requests.filter((r) => r.method === "HEAD")).toHaveLength(2);
  });

  it("a web page instead of the file is refused (T-18)", async () => {
    const hub = await serve(one());
    const dir = await temporary();
    hub.setFaults({ htmlInstead: true });
    expect(await failure(hub, dir)).toMatchObject({ code: "E_HUB" });
    hub.setFaults({ htmlInstead: 2 });
    await run(hub, dir);
    await expectComplete(dir, one());
  });

  it("a byte flipped on the way is found by the hash, and the file fetched once more", async () => {
    const hub = await serve(one());
    const dir = await temporary();
    hub.setFaults({ flipByteAt: { bytes: 1_000_000, count: 1 } });
    const { messages } = await run(hub, dir);
    expect(messages.join("\n")).toMatch(/do not have the published hash/);
    await expectComplete(dir, one());
  });

  it("a source that is wrong twice is quarantined with exit 3; the other files are complete", async () => {
    const files = sampleFiles(1 * MIB, 3);
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ flipByteAt: { bytes: 70_000, path: "model-00002" } });
    const error = await failure(hub, dir);
    expect(error).toMatchObject({ code: "E_DATA", exit: 3, details: { paths: [shardName(1, 3)] } });
    expect((await leftovers(dir)).map((name) => name.replace(/^.*\./, ""))).toEqual(["bad"]);
    hub.clearFaults();
    const { result } = await run(hub, dir);
    expect(result.downloaded_bytes).toBe(1 * MIB + 1);
  });

  it("row 33: an empty file is made and verified, whatever a probe of it would answer", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir, { include: ["empty.txt"] });
    expect(result).toMatchObject({ files: 1, bytes: 0, downloaded_bytes: 0, verified: true });
    expect((await files.find((f) => f.path === "empty.txt")!.hashes()).oid).toMatch(/^e69de29b/);
    await expectComplete(
      dir,
      files.filter((f) => f.path === "empty.txt"),
    );
  });
});
