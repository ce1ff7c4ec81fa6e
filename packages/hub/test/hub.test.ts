// Requests of the Hub against a loopback Hub that fails in the ways it is told to.
import { createServer, type RequestListener, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { bytesFile, type HubOptions, type Hub as LoopbackHub, startBlackHole, startHub } from "@k3/testkit";
import { describe, expect, onTestFinished, test } from "vitest";
import { HttpClient } from "../src/http-client.ts";
import { Hub } from "../src/hub.ts";
import { listSnapshot, resolveRevision } from "../src/listing.ts";
import { RateGate } from "../src/rate-gate.ts";
import { HUB_TIMING, type HubTiming } from "../src/settings.ts";

const TIMING = { ...HUB_TIMING, backoffBase: 1, backoffCap: 20, ratePad: 1 };
const REPO = "ns/model";
const NAMES = ["config.json", "docs/a.md", "docs/b.md", "model.safetensors"];

async function served(options: Partial<HubOptions> = {}): Promise<LoopbackHub> {
  const files = NAMES.map((name) => bytesFile(name, `the bytes of ${name}`));
  const hub = await startHub({ repositories: [{ name: REPO, files }], ...options });
  onTestFinished(() => hub.close());
  return hub;
}

async function answering(answer: RequestListener): Promise<string> {
  const server = createServer(answer);
  onTestFinished(() => {
    server.closeAllConnections();
    return new Promise<void>((done) => server.close(() => done()));
  });
  await new Promise<void>((ready) => server.listen(0, "127.0.0.1", ready));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function connect(
  endpoint: string,
  { token, signal, timing = TIMING }: { token?: string; signal?: AbortSignal; timing?: HubTiming } = {},
) {
  const said: string[] = [];
  const gate = new RateGate(timing, (bucket) => said.push(`closed: ${bucket}`));
  const client = new HttpClient({ client: "k3-hub-test/1", endpoint, timing }, token, gate);
  onTestFinished(() => client.close());
  const reporter = {
    retried: (problem: string) => void said.push(problem),
    log: (_: string, text: string) => void said.push(text),
  };
  return { hub: new Hub(client, timing, reporter, signal ?? new AbortController().signal), said };
}

describe("a listing", () => {
  test("of a repository that was renamed is complete over all its pages", async () => {
    const loopback = await served({ pageSize: 2, renamed: { "old/name": REPO } });
    const { hub } = connect(loopback.endpoint);
    const { files } = await listSnapshot(hub, "old/name", await resolveRevision(hub, "old/name", "main"));
    expect(files.map(({ path }) => path)).toEqual(NAMES);
  });

  test("is complete over all its pages, sorted, with the hash of every file", async () => {
    const loopback = await served({ pageSize: 2 });
    const { hub } = connect(loopback.endpoint);
    const commit = await resolveRevision(hub, REPO, "main");
    const { revision, files } = await listSnapshot(hub, REPO, commit);
    expect(revision).toMatch(/^[0-9a-f]{40}$/);
    expect(files.map(({ path }) => path)).toEqual(NAMES);
    for (const file of files) expect(file.sha256 ?? file.gitSha1).toMatch(/^[0-9a-f]{40,64}$/);
    expect(new Set(loopback.requests.map(({ userAgent }) => userAgent?.split(" ")[0]))).toEqual(
      new Set(["k3-hub-test/1"]),
    );
  });

  test.each<[string, Parameters<LoopbackHub["setFaults"]>[0], RegExp]>([
    ["whose next page is on another host", { linkHost: true }, /another host/],
    ["whose pages go round in a circle", { linkRepeatCursor: true }, /circle/],
    ["that ends too early", { shortTree: 2 }, /2 files of the commit are not in it/],
    ["with a path that leads out", { unsafePaths: ["../evil"] }, /unsafe path/],
  ])("%s is refused", async (_, faults, message) => {
    const loopback = await served({ pageSize: 2 });
    const { hub } = connect(loopback.endpoint, { token: "secret" });
    const commit = await resolveRevision(hub, REPO, "main");
    loopback.setFaults(faults);
    await expect(listSnapshot(hub, REPO, commit)).rejects.toMatchObject({
      code: "E_HUB",
      exit: 6,
      message: expect.stringMatching(message),
    });
    expect(loopback.requests.filter(({ where }) => where !== "hub")).toEqual([]);
  });
});

describe("the next page of a listing", () => {
  test.each([
    ["on another host", "http://127.0.0.3:1/api/models/ns/model/tree/main?cursor=2", /another host/],
    ["of another repository", "/api/models/ns/other/tree/main?cursor=2", /refused/],
    ["on another port", "http://127.0.0.1:1/api/models/ns/model/tree/main?cursor=2", /another host/],
  ])("%s is refused before anything can follow it", async (_, next, message) => {
    const asked: string[] = [];
    const server = createServer((request, response) => {
      asked.push(request.url!);
      response
        .writeHead(200, { "content-type": "application/json", link: `<${next}>; rel="next"` })
        .end("[]");
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    onTestFinished(() => void server.close());
    const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const { hub } = connect(endpoint, { token: "secret" });
    const path = "/api/models/ns/model/tree/main?recursive=true";
    await expect(hub.fetcher()(`${endpoint}${path}`)).rejects.toMatchObject({
      code: "E_HUB",
      message: expect.stringMatching(message),
    });
    expect(asked).toEqual([path]);
  });
});

describe("guarded requests", () => {
  test("of bodies that the endpoint serves itself have all connections, and none waits for them", async () => {
    const waiting: ServerResponse[] = [];
    const endpoint = await answering((request, response) => {
      if (request.method === "HEAD") return response.end();
      waiting.push(response);
      if (waiting.length === 8) for (const each of waiting) each.end("x");
    });
    const signal = AbortSignal.timeout(20_000);
    const gate = new RateGate(TIMING, () => undefined);
    const client = new HttpClient(
      { client: "t/1", endpoint, timing: TIMING, connections: 8 },
      undefined,
      gate,
    );
    onTestFinished(() => client.close());
    const body = () => client.send(new URL(`${endpoint}/file`), { method: "GET", foreign: "follow", signal });
    const seven = Array.from({ length: 7 }, body);
    const head = await client.send(new URL(`${endpoint}/file`), { method: "HEAD", foreign: "stop", signal });
    expect(head.status).toBe(200);
    for (const { body: bytes } of await Promise.all([...seven, body()])) expect(await bytes.text()).toBe("x");
  });

  test("end when an answer never comes to its end, byte by byte", async () => {
    const endpoint = await answering((_, response) => {
      response.write("[");
      const drip = setInterval(() => response.write(" "), 20);
      response.once("close", () => clearInterval(drip));
    });
    const { hub } = connect(endpoint, { timing: { ...TIMING, giveUp: 300 } });
    await expect(hub.fetcher()(`${endpoint}/api/x`)).rejects.toMatchObject({
      code: "E_NETWORK",
      message: expect.stringContaining("has not ended"),
    });
  });

  test("give up on an endpoint that is not there, with exit 6", async () => {
    const loopback = await served();
    await loopback.close();
    const { hub } = connect(loopback.endpoint);
    await expect(hub.fetcher()(`${loopback.endpoint}/api/x`)).rejects.toMatchObject({
      code: "E_NETWORK",
      exit: 6,
      message: expect.stringContaining("ECONNREFUSED"),
    });
  });

  test("give up on an endpoint that only fails, after six attempts", async () => {
    const loopback = await served();
    loopback.setFaults({ hub503: true });
    const { hub, said } = connect(loopback.endpoint);
    await expect(hub.fetcher()(`${loopback.endpoint}/api/models/${REPO}/tree/main`)).rejects.toMatchObject({
      code: "E_NETWORK",
    });
    expect(loopback.requests).toHaveLength(6);
    expect(said.filter((text) => text.includes("503"))).toHaveLength(6);
  });

  test("wait for a rate limit as long as the Hub says, then succeed", async () => {
    const loopback = await served();
    loopback.setFaults({ hub429: { r: 0, t: 1, count: 1 } });
    const { hub, said } = connect(loopback.endpoint);
    expect((await resolveRevision(hub, REPO, "main")).paths).toEqual(expect.arrayContaining(NAMES));
    expect(loopback.requests.map(({ status }) => status)).toEqual([429, 200]);
    expect(said).toContainEqual(expect.stringContaining("closed: "));
  });

  test("go to no other origin, not even to another port of the same host", async () => {
    const loopback = await served();
    const { hub } = connect("http://127.0.0.1:1");
    await expect(hub.fetcher()(`${loopback.endpoint}/api`)).rejects.toMatchObject({ code: "E_HUB" });
    expect(loopback.requests).toHaveLength(0);
  });

  test("stop at once when they are told to, in a connection that hangs", async () => {
    const hole = await startBlackHole();
    onTestFinished(() => hole.close());
    const controller = new AbortController();
    const { hub } = connect(hole.origin, { signal: controller.signal });
    const asked = hub.fetcher()(`${hole.origin}/api`);
    setTimeout(() => controller.abort(), 50);
    await expect(asked).rejects.toMatchObject({ code: "E_INTERRUPTED", exit: 130 });
  });
});
