import { readdir, readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { type AddressInfo, connect, createServer as createTcpServer, type LookupFunction } from "node:net";
import { join } from "node:path";
import { bytesFile, loopbackCertificate, startBlackHole, syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  atEnd,
  expectComplete,
  failure,
  KIB,
  MIB,
  REPO,
  run,
  said,
  sampleFiles,
  serve,
  shardName,
  spawnRun,
  temporary,
  testOptions,
} from "./support.ts";

const SECRET = "hf_SecretTokenThatMustNotLeak0123456789";

/** A CONNECT proxy that leads a host (`name:port`) to where `route` says, or refuses it. */
async function startProxy(
  route: (host: string) => string | undefined,
): Promise<{ url: string; tunnels: string[] }> {
  const tunnels: string[] = [];
  const proxy = createServer((_, response) => response.writeHead(500).end());
  proxy.on("connect", (request, socket) => {
    tunnels.push(request.url!);
    socket.on("error", () => undefined);
    const target = route(request.url!);
    if (target === undefined) return socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
    const [host, port] = target.split(":");
    const upstream = connect(Number(port), host!, () => {
      socket.write("HTTP/1.1 200 OK\r\n\r\n");
      upstream.pipe(socket).pipe(upstream);
    });
    upstream.on("error", () => socket.destroy());
    return undefined;
  });
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  atEnd(async () => {
    proxy.closeAllConnections();
    proxy.close();
  });
  return { url: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`, tunnels };
}

describe("listings (hub.md section 7)", () => {
  it("row 23: follows every page of the listing, and a page that fails once", async () => {
    const files = sampleFiles(100 * KIB, 3);
    const hub = await serve(files, { pageSize: 3 });
    const dir = await temporary();
    hub.setFaults({ page2_500: 1 });
    const { result } = await run(hub, dir);
    expect(result.files).toBe(files.length);
    await expectComplete(dir, files);
  });

  it("row 23: a page that keeps failing is an error, not a shorter list", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 3), { pageSize: 3 });
    const dir = await temporary();
    hub.setFaults({ page2_500: true });
    expect(await failure(hub, dir)).toMatchObject({ code: "E_NETWORK", exit: 6 });
    expect(await readdir(dir)).toEqual([".cache"]);
  });

  it("row 23: a listing that silently lacks files is an error", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 3), { pageSize: 3 });
    const dir = await temporary();
    hub.setFaults({ shortTree: 2 });
    const error = await failure(hub, dir);
    expect(error).toMatchObject({ code: "E_HUB", exit: 6 });
    expect(error.message).toContain("incomplete");
  });

  it("a listing whose pages go round in a circle is an error", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 3));
    const dir = await temporary();
    hub.setFaults({ linkRepeatCursor: true });
    expect(await failure(hub, dir)).toMatchObject({ code: "E_HUB" });
  });

  it("rows 12 and 18: a next page on another host is a protocol error, and that host is not asked", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 3), { pageSize: 3 });
    const dir = await temporary();
    hub.setFaults({ linkHost: true });
    const error = await failure(hub, dir, { token: SECRET });
    expect(error).toMatchObject({ code: "E_HUB", exit: 6 });
    expect(hub.requests.filter((r) => r.where === "other")).toEqual([]);
  });

  it("row 21: names that would leave the directory are refused, nothing is written outside or inside", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 1));
    for (const path of [
      "..\\evil",
      "../evil",
      "C:evil",
      "C:\\evil",
      "\\\\host\\share",
      "/tmp/evil",
      "a/../../evil",
      ".cache/k3/lock",
    ]) {
      const dir = await temporary();
      hub.setFaults({ unsafePaths: [path] });
      expect(await failure(hub, dir), path).toMatchObject({ code: "E_HUB", exit: 6 });
      expect(await readdir(dir)).toEqual([".cache"]);
      expect(await readdir(join(dir, ".cache"))).toEqual(["k3"]);
      expect(hub.requests.filter((r) => r.path !== null)).toEqual([]);
    }
  });

  it("row 20: directories of the listing are not files", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir);
    expect(result.files).toBe(files.length);
    expect(await readFile(join(dir, "docs/deep/notes 100%#1 ü.md"), "utf8")).toBe("notes");
  });

  it("row 13: the expected hash is the listing's, not the storage's ETag that looks like one", async () => {
    const files = [syntheticFile("model.safetensors", 600 * KIB, { seed: 4 })];
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir);
    const { sha256 } = await files[0]!.hashes();
    const metadata = await readFile(
      join(dir, ".cache/huggingface/download/model.safetensors.metadata"),
      "utf8",
    );
    expect(metadata.split("\n").slice(0, 2)).toEqual([result.revision, sha256]);
  });

  it("a Hub that contradicts its own listing when asked for a file is not believed", async () => {
    for (const fault of [{ wrongEtag: true }, { wrongSize: true }] as const) {
      const hub = await serve([syntheticFile("model.safetensors", 600 * KIB, { seed: 4 })]);
      const dir = await temporary();
      hub.setFaults(fault);
      expect(await failure(hub, dir)).toMatchObject({ code: "E_HUB" });
      expect(hub.requests.filter((r) => r.where === "cdn")).toEqual([]);
    }
  });

  it("row 17: a mirror that drops X-Linked-*, ETag and lengths is enough, with a warning", async () => {
    const files = sampleFiles(300 * KIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ missingLinked: true });
    const { messages } = await run(hub, dir);
    await expectComplete(dir, files);
    expect(messages.filter((m) => /does not repeat size and hash/.test(m))).toHaveLength(1);
  });

  it("a branch, a tag-like ref with slashes and a full commit name the same files", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files);
    const sha = await hub.repository(REPO).commit(files.slice(1), { refs: ["refs/pr/1"] });
    const { result } = await run(hub, await temporary(), { revision: "refs/pr/1" });
    expect(result).toMatchObject({ revision: sha, files: files.length - 1 });
    expect((await run(hub, await temporary(), { revision: sha })).result.revision).toBe(sha);
  });

  it("a renamed repository is followed within the endpoint", async () => {
    const files = sampleFiles(300 * KIB, 1);
    const hub = await serve(files, { renamed: { "old/name": REPO } });
    const dir = await temporary();
    await run(hub, dir, { repo: "old/name" });
    await expectComplete(dir, files);
  });

  it("a redirect that goes round ends with E_HUB", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 1));
    hub.setFaults({ redirectLoop: true });
    const error = await failure(hub, await temporary());
    expect(error).toMatchObject({ code: "E_HUB" });
    expect(error.message).toContain("redirects more than");
  });

  it("an endpoint that answers with a web page is named as such", async () => {
    const server = createServer((_, response) =>
      response.end("<!doctype html><title>Welcome to our Wi-Fi</title>"),
    );
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    atEnd(() => new Promise((resolve) => server.close(resolve)));
    const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const error = await failure({ endpoint }, await temporary());
    expect(error).toMatchObject({ code: "E_HUB" });
    expect(error.message).toContain("a web page instead of JSON");
  });
});

describe("who is told what (hub.md section 7)", () => {
  it("row 12: the token goes to the endpoint's origin alone, and appears in no event, error or file", async () => {
    const files = sampleFiles(600 * KIB, 2);
    const hub = await serve(files, {
      repositories: [{ name: REPO, files, private: true }],
      tokens: [SECRET],
    });
    const dir = await temporary();
    hub.setFaults({ cdnRejectsAuth: true, cdn503: 2 });
    const { events } = await run(hub, dir, { token: SECRET });
    await expectComplete(dir, files);
    for (const request of hub.requests) {
      expect([request.where, request.auth]).toEqual([
        request.where,
        request.where === "hub" ? `Bearer ${SECRET}` : null,
      ]);
    }
    expect(JSON.stringify(events)).not.toContain(SECRET);
    for (const name of await readdir(dir, { recursive: true, withFileTypes: true })) {
      if (!name.isFile()) continue;
      const text = await readFile(join(name.parentPath, name.name), "latin1");
      expect(text.includes(SECRET), name.name).toBe(false);
      if (name.parentPath.includes(".cache")) expect(text, name.name).not.toMatch(/X-Amz|Signature=/);
    }
  });

  it("a server that repeats the token in its refusal does not get it into the error", async () => {
    const server = createServer((request, response) => {
      response.writeHead(403, { "x-error-message": `no access for ${request.headers.authorization}` }).end();
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    atEnd(() => new Promise((resolve) => server.close(resolve)));
    const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    for (const token of [SECRET, "plain-Token.of.Another_Kind"]) {
      const error = await failure({ endpoint }, await temporary(), { token });
      expect(error.message).toContain("no access for");
      expect(JSON.stringify([error.message, error.hint, error.details, String(error.cause)])).not.toContain(
        token,
      );
    }
  });

  it("row 12: bodies may come from another host, but without the token", async () => {
    const hub = await serve([syntheticFile("model.safetensors", 600 * KIB, { seed: 4 })]);
    const dir = await temporary();
    hub.setFaults({ locationHost: true });
    // The third host serves empty lists, so the run fails; what matters is what it was told.
    const error = await failure(hub, dir, { token: SECRET });
    expect(error.message).not.toContain(SECRET);
    const asked = hub.requests.filter((r) => r.where === "other");
    expect(asked.length).toBeGreaterThan(0);
    expect(asked.map((r) => r.auth)).toEqual(asked.map(() => null));
  });

  it("row 12: a redirect from https to http is refused, and nobody is told anything there", async () => {
    const tls = loopbackCertificate();
    const files = [syntheticFile("model.safetensors", 600 * KIB, { seed: 4 })];
    const hub = await serve(files, { tls });
    const ca = join(await temporary(), "ca.pem");
    await writeFile(ca, tls.cert);
    const env = { NODE_EXTRA_CA_CERTS: ca };
    hub.setFaults({ downgradeHttp: true });
    const { output } = await spawnRun(testOptions(hub, await temporary(), { token: SECRET }), { env }).ended;
    expect(said(output).error).toMatchObject({ code: "E_HUB", exit: 6 });
    expect(said(output).error!.message).toContain("from https to http");
    expect(hub.requests.filter((r) => r.where === "cdn")).toEqual([]);
    hub.clearFaults();
    const dir = await temporary();
    expect((await spawnRun(testOptions(hub, dir), { env }).ended).code).toBe(0);
    await expectComplete(dir, files);
  });

  it("a certificate that is not trusted ends the run at once, naming the remedy", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 1), { tls: loopbackCertificate() });
    const error = await failure(hub, await temporary());
    expect(error).toMatchObject({ code: "E_NETWORK", exit: 6 });
    expect(error.hint).toContain("NODE_EXTRA_CA_CERTS");
    expect(hub.requests).toEqual([]);
  });

  it("row 18: with the default endpoint, bodies come from known hosts or those given by cdnHosts alone", async () => {
    const tls = loopbackCertificate(["huggingface.co", "127.0.0.1", "127.0.0.2"]);
    const files = [syntheticFile("model.safetensors", 600 * KIB, { seed: 4 })];
    const hub = await serve(files, { tls });
    const ca = join(await temporary(), "ca.pem");
    await writeFile(ca, tls.cert);
    // Nothing but the name of the real Hub, led to the loopback one.
    const { url, tunnels } = await startProxy((host) =>
      host === "huggingface.co:443" ? new URL(hub.endpoint).host : host,
    );
    const env = {
      NODE_EXTRA_CA_CERTS: ca,
      HTTPS_PROXY: url,
      https_proxy: url,
      NO_PROXY: "",
      no_proxy: "",
      HF_ENDPOINT: "",
    };
    const options = { ...testOptions(hub, await temporary(), { token: SECRET }), endpoint: undefined };
    const refused = said((await spawnRun(options, { env }).ended).output).error!;
    expect(refused).toMatchObject({
      code: "E_HUB",
      exit: 6,
      hint: expect.stringContaining("--cdn-host 127.0.0.2"),
    });
    expect(new Set(tunnels)).toEqual(new Set(["huggingface.co:443"]));
    const allowed = await spawnRun({ ...options, cdnHosts: ["127.0.0.2"] }, { env }).ended;
    expect(said(allowed.output).result).toMatchObject({ downloaded_bytes: 600 * KIB });
    expect(hub.requests.filter((r) => r.where === "cdn").map((r) => r.auth)).toEqual([null, null, null]);
  });

  it("row 22: a token that does not begin with hf_ works with one's own endpoint", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files, { repositories: [{ name: REPO, files, private: true }], tokens: ["abc"] });
    const dir = await temporary();
    await run(hub, dir, { token: "abc" });
    await expectComplete(dir, files);
  });

  it("row 25: a gated repository without access ends at once, with one request for it", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const gated = { name: REPO, files, gated: true, granted: ["good"] };
    const hub = await serve(files, { repositories: [gated, { name: "ns/private", files, private: true }] });
    for (const token of ["", "other"]) {
      hub.clearLog();
      const error = await failure(hub, await temporary(), { token, concurrency: 1 });
      expect(error).toMatchObject({ code: "E_HUB", exit: 6 });
      expect(error.message).toContain("gated");
      expect(error.hint).toMatch(/terms/);
      expect(hub.requests.filter((r) => r.path !== null)).toHaveLength(1);
    }
    hub.clearLog();
    expect(await failure(hub, await temporary(), { repo: "ns/private" })).toMatchObject({ code: "E_HUB" });
    expect(hub.requests).toHaveLength(1);
    await run(hub, await temporary(), { token: "good" });
  });

  it("names what is missing: a repository, a revision", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 1));
    expect((await failure(hub, await temporary(), { repo: "ns/none" })).message).toContain("does not exist");
    expect((await failure(hub, await temporary(), { revision: "none" })).message).toContain(
      "no such revision",
    );
    expect((await failure(hub, await temporary(), { revision: "1".repeat(40) })).exit).toBe(6);
  });
});

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

describe("what is downloaded, and in which order", () => {
  it("first patterns come before all else, then small files, then shards by name", async () => {
    const files = sampleFiles(600 * KIB, 3);
    const hub = await serve(files);
    const dir = await temporary();
    await run(hub, dir, { concurrency: 1, first: ["model-00002*"] });
    const order = [...new Set(hub.requests.filter((r) => r.method === "GET" && r.path).map((r) => r.path!))];
    expect(order[0]).toBe(shardName(1, 3));
    expect(order.slice(-2)).toEqual([shardName(0, 3), shardName(2, 3)]);
    expect(order.slice(1, -2)).toContain("config.json");
    const { messages } = await run(hub, await temporary(), { first: ["config*", "modle-00001*"] });
    expect(messages.filter((m) => m.includes("come first"))).toEqual([
      'no file matches "modle-00001*", which was to come first',
    ]);
  });

  it("include and exclude choose files; the manifest still lists all of them", async () => {
    const files = sampleFiles(100 * KIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir, { include: ["*.json", "model-*"], exclude: ["*-00002-*"] });
    expect(result.files).toBe(3);
    const snapshot = JSON.parse(await readFile(join(dir, ".cache/k3/snapshot.json"), "utf8"));
    expect(snapshot.files).toHaveLength(files.length);
    expect(snapshot.selected).toEqual(["config.json", shardName(0, 2), "tokenizer_config.json"]);
    expect(await failure(hub, await temporary(), { include: ["nothing*"] })).toMatchObject({ exit: 2 });
  });

  it("at most two shards are open, and the last one gets all connections", async () => {
    // The last one is so large that it is alone for a second, on any machine.
    const last = syntheticFile("model-last.safetensors", 9 * MIB, { seed: 9 });
    const hub = await serve([...sampleFiles(1 * MIB, 3), last]);
    const dir = await temporary();
    hub.setFaults({ bps: 8 * MIB });
    const { events } = await run(hub, dir, { concurrency: 6 });
    const details = events.flatMap((e) => (e.type === "progress" && e.detail?.["file"] ? [e.detail] : []));
    const shards = details.filter((d) => String(d["file"]).startsWith("model-"));
    expect(Math.max(...shards.map((d) => Number(d["files_open"])))).toBeLessThanOrEqual(2);
    const alone = shards.filter((d) => d["files_left"] === 1);
    expect(Math.max(...alone.map((d) => Number(d["connections"])))).toBeGreaterThan(2);
  });
});
