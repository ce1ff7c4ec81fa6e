import { type AddressInfo, createServer as createTcpServer, type LookupFunction } from "node:net";
import { bytesFile, startBlackHole, syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  atEnd,
  expectComplete,
  failure,
  KIB,
  MIB,
  run,
  said,
  sampleFiles,
  serve,
  spawnRun,
  startProxy,
  temporary,
  testOptions,
} from "./support.ts";

describe("rate limits and networks (hub.md section 7)", () => {
  it("row 11: after a 429 with t seconds nobody asks before they have passed", async () => {
    const files = sampleFiles(600 * KIB, 3);
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ hub429: { r: 0, t: 3, count: 1, skip: 2, bucket: "resolvers" } });
    const { messages } = await run(hub, dir);
    await expectComplete(dir, files);
    const limited = hub.requests.findIndex((r) => r.status === 429);
    const others = hub.requests.slice(limited + 1).filter((r) => r.where === "hub");
    // Requests already on their way when the 429 came do not count.
    const late = others.filter((r) => r.at > hub.requests[limited]!.at + 200);
    expect(late.length).toBeGreaterThan(0);
    expect(Math.min(...late.map((r) => r.at)) - hub.requests[limited]!.at).toBeGreaterThanOrEqual(2990);
    expect(messages.join("\n")).toMatch(/rate limit of "resolvers" reached: waiting/);
  });

  it("row 11: a wait that the server asks for is no failure, however often it asks", async () => {
    // A file of the Hub itself, whose body counts there, too; the first two requests ask for its place.
    const hub = await serve([bytesFile("config.json", "{}")]);
    hub.setFaults({ hub429: { r: 0, t: 0, count: 6, skip: 2, bucket: "resolvers" } });
    const { messages } = await run(hub, await temporary(), { internals: { timing: { attempts: 2 } } });
    expect(hub.struck("hub429")).toBe(6);
    expect(hub.requests.filter((r) => r.status === 429).map((r) => r.method)).toEqual(Array(6).fill("GET"));
    expect(messages.join("\n")).not.toContain("keeps failing");
  });

  it("row 11: a host that asks to wait for ever, a little at a time, is given up when no byte came for that long", async () => {
    const hub = await serve([bytesFile("config.json", "{}")]);
    hub.setFaults({ hub429: { r: 0, t: 0, skip: 2, bucket: "resolvers" } });
    const error = await failure(hub, await temporary(), {
      internals: { timing: { giveUp: 1000 } },
      signal: AbortSignal.timeout(20_000),
    });
    expect(error).toMatchObject({ code: "E_NETWORK", message: expect.stringContaining("status 429") });
  });

  it("row 11: Retry-After is honoured in seconds and as a date, in listings too", async () => {
    for (const retryAfter of [1, new Date(Date.now() + 2000).toUTCString()]) {
      const files = sampleFiles(100 * KIB, 1);
      const hub = await serve(files);
      hub.setFaults({ hub429: { r: 5, t: 60, retryAfter, count: 1, bucket: "api" } });
      await run(hub, await temporary());
      const [limited, next] = hub.requests;
      expect(limited!.status).toBe(429);
      expect(next!.at - limited!.at).toBeGreaterThanOrEqual(990 - (typeof retryAfter === "string" ? 990 : 0));
      expect(hub.struck("hub429")).toBe(1);
    }
  });

  it("row 11: paces itself by the announced quota before it is empty", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files, { limits: { resolvers: { q: 12, w: 3 } } });
    await run(hub, await temporary(), { concurrency: 1 });
    expect(hub.requests.filter((r) => r.path !== null).length).toBeGreaterThan(12);
    expect(hub.requests.filter((r) => r.status === 429)).toEqual([]);
  });

  it("a rate limit longer than the time to give up ends the run with that number", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 1));
    hub.setFaults({ hub429: { r: 0, t: 7200 } });
    const error = await failure(hub, await temporary());
    expect(error).toMatchObject({ code: "E_NETWORK", exit: 6 });
    expect(error.message).toMatch(/72\d\d s/);
  });

  it("row 16: a dead first address costs a fraction of a second, not the connect timeout", async () => {
    const files = sampleFiles(300 * KIB, 1);
    const hub = await serve(files);
    const { port } = new URL(hub.endpoint);
    const hole = await startBlackHole("127.0.0.5", Number(port));
    atEnd(() => hole.close());
    const lookup: LookupFunction = (_name, options, done) => {
      const addresses = ["127.0.0.5", "127.0.0.1"].map((address) => ({ address, family: 4 }));
      if (options.all) done(null, addresses);
      else done(null, addresses[0]!.address, 4);
    };
    const dir = await temporary();
    await run({ endpoint: `http://two-addresses.test:${port}` }, dir, {
      internals: { lookup, timing: { connect: 60_000 } },
    });
    await expectComplete(dir, files);
  });

  it("an address that never answers is given up after the connect timeout, and asked for afresh", async () => {
    const files = [syntheticFile("model.safetensors", 300 * KIB, { seed: 1 })];
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ acceptQueueFull: 1 });
    await run(hub, dir, { internals: { timing: { connect: 400, attempts: 2 } } });
    await expectComplete(dir, files);
  });

  it("row 24: goes through the proxy of the environment, and names a body host that is blocked there", async () => {
    const files = sampleFiles(300 * KIB, 1);
    const hub = await serve(files);
    let blocked: string | undefined;
    const { url, tunnels } = await startProxy((host) => (host === blocked ? undefined : host));
    const env = { http_proxy: url, HTTP_PROXY: url, no_proxy: "", NO_PROXY: "" };
    const dir = await temporary();
    const { code } = await spawnRun(testOptions(hub, dir), { env }).ended;
    expect(code).toBe(0);
    await expectComplete(dir, files);
    expect(new Set(tunnels)).toEqual(new Set([hub.endpoint, hub.cdn].map((u) => new URL(u).host)));

    blocked = new URL(hub.cdn).host;
    const options = testOptions(hub, await temporary(), {
      internals: { timing: { giveUp: 600, attempts: 2 } },
    });
    const { output } = await spawnRun(options, { env }).ended;
    expect(said(output).error).toMatchObject({ exit: 6 });
    expect(said(output).error!.message).toContain(blocked);

    tunnels.length = 0;
    const direct = await temporary();
    await spawnRun(testOptions(hub, direct), { env: { ...env, no_proxy: "127.0.0.1,127.0.0.2" } }).ended;
    expect(tunnels).toEqual([]);
    await expectComplete(direct, files);
  });

  it("a proxy that wants a password ends the run with a clear text, not after retries", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 1));
    const proxy = createTcpServer((socket) => {
      socket.on("error", () => undefined);
      socket.once("data", () => socket.end("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"));
    });
    await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
    atEnd(async () => proxy.close());
    const url = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
    const { output } = await spawnRun(testOptions(hub, await temporary()), {
      env: { http_proxy: url, HTTP_PROXY: url, no_proxy: "", NO_PROXY: "" },
    }).ended;
    expect(said(output).error).toMatchObject({ code: "E_NETWORK" });
    expect(said(output).error!.message).toContain("407");
  });

  it("a body that waits for --limit-rate is not taken for one that stalls", async () => {
    const files = [syntheticFile("model.safetensors", 1 * MIB, { seed: 1 })];
    const hub = await serve(files);
    const dir = await temporary();
    // Four bodies share 256 KiB/s: each waits longer than a stall may last.
    const timing = { stall: 300, tailStall: 300 };
    const { events } = await run(hub, dir, { limitRate: 256 * KIB, concurrency: 4, internals: { timing } });
    expect(events.findLast((e) => e.type === "progress")!.detail).toMatchObject({ retries: 0 });
    await expectComplete(dir, files);
  });

  it("--limit-rate bounds the average rate", async () => {
    const files = [syntheticFile("model.safetensors", 3 * MIB, { seed: 1 })];
    const hub = await serve(files);
    const dir = await temporary();
    // A burst of one second is allowed: 1 MiB at once, the other 2 MiB at 1 MiB/s.
    const { result, events } = await run(hub, dir, { limitRate: 1 * MIB });
    expect(result.seconds).toBeGreaterThan(1.9);
    // Its waits are not the disk's.
    const details = events.flatMap((e) => (e.type === "progress" && e.detail?.["file"] ? [e.detail] : []));
    expect(details.length).toBeGreaterThan(10);
    const disk = details.filter((each) => each["waiting_for_disk"] !== 0);
    expect(disk.length).toBeLessThan(details.length / 2);
    await expectComplete(dir, files);
  });
});
