import { syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  expectComplete,
  failure,
  KIB,
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

describe("connections that break (hub.md section 7)", () => {
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
