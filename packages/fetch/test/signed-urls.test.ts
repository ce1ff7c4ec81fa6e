import { setTimeout } from "node:timers/promises";
import type { StageEvent } from "@k3/stage";
import { type Hub, syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import { settle } from "../src/options.ts";
import { Report } from "../src/report.ts";
import { Run } from "../src/run.ts";
import { FileSource } from "../src/source.ts";
import { expectComplete, failure, KIB, MIB, REPO, run, serve, temporary, testOptions } from "./support.ts";

const SHARD = "model.safetensors";
const one = (bytes = 4 * MIB) => [syntheticFile(SHARD, bytes, { seed: 3 })];

describe("signed URLs (hub.md section 7)", () => {
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

  /** The times at which the Hub was asked where the file is. */
  const asked = (hub: Hub) => hub.requests.filter(({ method }) => method === "HEAD").map(({ at }) => at);

  it("a refused URL is renewed after waits that grow, and a host that is out of order meanwhile ends nothing", async () => {
    expect(settle({ repo: REPO, dir: "d" }).timing.refreshWaits).toEqual([1000, 10_000, 60_000]);
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ cdn400: true });
    const mended = setTimeout(700).then(() => hub.clearFaults());
    const { messages, events } = await run(hub, dir, slow([100, 300, 900]));
    await mended;
    await expectComplete(dir, files);
    const gaps = asked(hub).map((at, i, all) => at - (all[i - 1] ?? at));
    expect(gaps).toHaveLength(4);
    // Timers may fire a millisecond early.
    for (const [i, wait] of [100, 300, 900].entries()) expect(gaps[i + 1]).toBeGreaterThanOrEqual(wait - 2);
    expect(messages.filter((text) => text.includes("(400): asking for a fresh URL in "))).toHaveLength(3);
    const problems = events.map((event) => event.type === "progress" && event.detail?.["last_problem"]);
    expect(problems).toContainEqual(expect.stringMatching(/status 400: asking for a fresh URL in 0\.[3-9]/));
  });

  it("an interruption ends the wait for a fresh URL", async () => {
    const hub = await serve(one());
    const stop = new AbortController();
    hub.setFaults({ cdn400: true });
    const onEvent = (event: StageEvent) => {
      if (event.type === "log" && event.message.includes("asking for a fresh URL")) stop.abort();
    };
    const options = { ...slow([600_000]), signal: stop.signal, onEvent };
    expect(await failure(hub, await temporary(), options)).toMatchObject({ code: "E_INTERRUPTED" });
    expect(asked(hub)).toHaveLength(1);
  });
});

const slow = (refreshWaits: number[]) => ({ internals: { timing: { refreshWaits } } });
