import { type FileHandle, open } from "node:fs/promises";
import { setTimeout } from "node:timers/promises";
import type { StageEvent } from "@k3/stage";
import { syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import { settle } from "../src/options.ts";
import { Report } from "../src/report.ts";
import { Run } from "../src/run.ts";
import { FileSource } from "../src/source.ts";
import {
  atEnd,
  expectComplete,
  failure,
  KIB,
  leftovers,
  MIB,
  REPO,
  run,
  sampleFiles,
  sentFor,
  serve,
  shardName,
  temporary,
  testOptions,
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

describe("connections that break (hub.md section 7)", () => {
  it("row 8: a signed URL that dies mid-download is renewed once per expiry, and what is there is kept", async () => {
    const files = one(6 * MIB);
    const ttlMs = 2500;
    const hub = await serve(files, { ttlMs });
    const dir = await temporary();
    hub.setFaults({ bps: 2 * MIB, cutAfter: { bytes: 100_000, count: 20 } });
    const started = performance.now();
    const { result } = await run(hub, dir, { concurrency: 4 });
    // Servers speak of expiry in whole seconds, so that a life can be a second shorter.
    const expiries = Math.ceil((performance.now() - started) / ((ttlMs - 1000) * 0.75));
    await expectComplete(dir, files);
    expect(hub.requests.filter((r) => r.method === "HEAD").length).toBeLessThanOrEqual(expiries + 1);
    expect(result.downloaded_bytes).toBe(6 * MIB);
  });

  it("row 8: a signature refused with 403 is renewed by one request for all connections", async () => {
    const files = one(6 * MIB);
    const hub = await serve(files);
    const dir = await temporary();
    // The URL seems good for an hour; the storage refuses it all the same.
    hub.setFaults({ cdn400: { count: 1, skip: 5 } });
    await run(hub, dir, { concurrency: 4 });
    await expectComplete(dir, files);
    expect(hub.requests.filter((r) => r.method === "HEAD")).toHaveLength(2);
  });

  it("row 8: connections that need a URL at once, or were refused the same one, share one request", async () => {
    const files = one();
    const hub = await serve(files);
    const settings = settle(testOptions(hub, await temporary()));
    const shared = new Run(settings, new Report(undefined, undefined, 4), undefined, undefined);
    const { sha256 } = await files[0]!.hashes();
    const revision = hub.repository(REPO).resolve("main")!.sha;
    const file = { path: SHARD, size: files[0]!.size, sha256: sha256! };
    const { location } = new FileSource(shared, revision, file);
    const [used] = await Promise.all(Array.from({ length: 8 }, () => location.get()));
    expect(hub.requests).toHaveLength(1);
    for (let i = 0; i < 8; i++) location.refused(used!, 403);
    const fresh = await Promise.all(Array.from({ length: 8 }, () => location.get()));
    expect(hub.requests).toHaveLength(2);
    expect(new Set(fresh.map((each) => each.url.href)).size).toBe(1);
    await shared.close();
  });

  it("row 8: a signed URL is not used to its end: five minutes, or a quarter of its life, are kept clear", async () => {
    const files = one();
    const hub = await serve(files);
    const options = testOptions(hub, await temporary(), {
      internals: { timing: { refreshMargin: 300_000 } },
    });
    const shared = new Run(settle(options), new Report(undefined, undefined, 4), undefined, undefined);
    const { sha256 } = await files[0]!.hashes();
    const revision = hub.repository(REPO).resolve("main")!.sha;
    const file = { path: SHARD, size: files[0]!.size, sha256: sha256! };
    for (const [life, use] of [
      [3_600_000, 3_300_000],
      [40_000, 30_000],
    ] as const) {
      hub.setFaults({ ttlMs: life });
      const before = performance.now();
      const { goodUntil } = await new FileSource(shared, revision, file).location.get();
      // Times of servers are in whole seconds.
      expect(goodUntil - before).toBeGreaterThan(use - 1500);
      expect(goodUntil - performance.now()).toBeLessThan(use + 1500);
    }
    await shared.close();
  });

  it("refusals count only while no byte comes, also when every body breaks off", async () => {
    // Each body brings 200 KiB and breaks off, and the next URL is refused: far more often than fresh URLs may be in a row.
    const hub = await serve(one(), {
      onRequest: ({ where, status }) => {
        if (where === "cdn" && status === 206) hub.setFaults({ cdn400: 1 });
      },
    });
    const dir = await temporary();
    hub.setFaults({ cutAfter: { bytes: 200 * KIB } });
    await run(hub, dir, { concurrency: 1, internals: { segmentBytes: MIB } });
    expect(hub.requests.filter(({ status }) => status === 400).length).toBeGreaterThan(8);
    await expectComplete(dir, one());
  });

  it("a host that refuses every fresh URL ends the run with E_HUB naming it", async () => {
    const hub = await serve(one());
    const dir = await temporary();
    hub.setFaults({ cdn400: true });
    const error = await failure(hub, dir);
    expect(error).toMatchObject({ code: "E_HUB", exit: 6 });
    expect(error.message).toContain(new URL(hub.cdn).host);
    expect(error.message).not.toMatch(/X-Amz|Signature/i);
  });

  it("row 9: a body that stalls in the last segment is given up by the watchdog, and the job ends", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ stallAt: { bytes: 4 * MIB - 1000, count: 2 } });
    // Only the limit of the last twentieth of the job is short.
    const { events } = await run(hub, dir, { internals: { timing: { stall: 3_600_000 } } });
    await expectComplete(dir, files);
    const problems = events.map((e) =>
      e.type === "progress" ? String(e.detail?.["last_problem"] ?? "") : "",
    );
    expect(problems.join("\n")).toContain("stalled");
  });

  it("row 30: a CDN that closes every connection after 3 MiB costs under 5 % more, and never the retry limit", async () => {
    const files = one(40 * MIB);
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ cutAfter: { bytes: 3 * MIB } });
    const internals = { segmentBytes: 40 * MIB, timing: { attempts: 4 } };
    const { result, messages } = await run(hub, dir, { concurrency: 2, internals });
    await expectComplete(dir, files);
    expect(hub.struck("cutAfter")).toBeGreaterThan(10);
    expect(messages.join("\n")).not.toContain("keeps failing");
    expect(sentFor(hub, SHARD)).toBeLessThan(40 * MIB * 1.05);
    expect(result.downloaded_bytes).toBe(40 * MIB);
  });

  it("row 30: with resets no byte that arrived is fetched again", async () => {
    const files = one(8 * MIB);
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ cutAfter: { bytes: 1 * MIB, reset: true }, bps: 16 * MIB });
    const { result } = await run(hub, dir, { concurrency: 2, internals: { segmentBytes: 8 * MIB } });
    await expectComplete(dir, files);
    expect(hub.struck("cutAfter")).toBeGreaterThan(5);
    expect(result.downloaded_bytes).toBe(8 * MIB);
  });

  it("a body that ends early is never published (T-17)", async () => {
    const files = sampleFiles(700 * KIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ cutAfter: { bytes: 100_000 } });
    await run(hub, dir);
    await expectComplete(dir, files);
  });

  it("503 from the CDN and from the Hub are waited out", async () => {
    const files = sampleFiles(700 * KIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ cdn503: 6, hub503: 3 });
    const { events } = await run(hub, dir);
    await expectComplete(dir, files);
    const last = events.filter((e) => e.type === "progress").at(-1)!;
    expect(Number(last.detail!["retries"])).toBeGreaterThanOrEqual(9);
  });

  it("a Hub that is away for longer than any number of attempts in the middle of a job is waited out", async () => {
    const hub = await serve();
    const dir = await temporary();
    hub.setFaults({ hub503: { path: "00002-of", count: 12 } });
    await run(hub, dir);
    expect(hub.struck("hub503")).toBe(12);
    await expectComplete(dir, sampleFiles());
  });

  it("a Hub that does not come back is given up after the time for that, and the next run resumes", async () => {
    const hub = await serve();
    const dir = await temporary();
    hub.setFaults({ hub503: { path: "00002-of" } });
    const error = await failure(hub, dir, { internals: { timing: { giveUp: 1000 } } });
    expect(error).toMatchObject({ code: "E_NETWORK", exit: 6 });
    expect(hub.struck("hub503")).toBeGreaterThan(6);
    hub.clearFaults();
    await run(hub, dir);
    await expectComplete(dir, sampleFiles());
  });

  it("a file whose host keeps failing is put to the end; the others do not wait for it", async () => {
    const files = sampleFiles(700 * KIB, 3);
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ cdn503: { count: 25, path: "model-00001" } });
    const { messages } = await run(hub, dir, { concurrency: 2, internals: { timing: { attempts: 3 } } });
    await expectComplete(dir, files);
    expect(messages.join("\n")).toContain(
      `${shardName(0, 3)}: its host keeps failing, so other files go first`,
    );
    const order = hub.requests.filter((r) => r.status === 206).map((r) => r.path);
    expect(order.indexOf(shardName(0, 3))).toBeGreaterThan(order.lastIndexOf(shardName(2, 3)) - 1);
  });

  it("gives up with exit 6 when no byte comes for the time given, names the host, and resumes later", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ cdn503: { skip: 6 } });
    const error = await failure(hub, dir, { internals: { timing: { giveUp: 800, attempts: 3 } } });
    expect(error).toMatchObject({ code: "E_NETWORK", exit: 6 });
    expect(error.message).toContain(new URL(hub.cdn).host);
    hub.clearFaults();
    const { result } = await run(hub, dir);
    expect(result.resumed_bytes).toBeGreaterThan(0);
    await expectComplete(dir, files);
  });
});
