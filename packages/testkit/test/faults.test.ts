import { connect } from "node:net";
import { gunzipSync } from "node:zlib";
import { afterEach, beforeEach, expect, test } from "vitest";
import { bytesFile, type Faults, fileBytes, type Hub, startHub, syntheticFile } from "../src/index.ts";
import { ask, located } from "./client.ts";

const REPO = "k3/sample";
const shard = syntheticFile("model.safetensors", 400_000, { seed: 7 });
const plain = bytesFile("config.json", "{}");
const range = { headers: { range: "bytes=1000-1999" } };

let hub: Hub;
let hubUrl: string;
let cdnUrl: string;
const tree = () => `${hub.endpoint}/api/models/${REPO}/tree/main?recursive=true`;
beforeEach(async () => {
  hub = await startHub({ repositories: [{ name: REPO, files: [shard, plain] }], pageSize: 1 });
  hubUrl = `${hub.endpoint}/${REPO}/resolve/main/${shard.path}`;
  cdnUrl = await located(hubUrl);
});
afterEach(() => hub.close());

/** With the fault set once, the first answer shows it and the second is right again. */
async function strikesOnce(faults: Faults): Promise<Awaited<ReturnType<typeof ask>>> {
  hub.setFaults(faults);
  const struck = await ask(cdnUrl, range);
  const after = await ask(cdnUrl, range);
  expect(after.status).toBe(206);
  expect(after.headers["content-range"]).toBe(`bytes 1000-1999/${shard.size}`);
  expect(after.body.equals(await fileBytes(shard, 1000, 2000))).toBe(true);
  return struck;
}

test("cutAfter closes in the middle of longer bodies only", async () => {
  hub.setFaults({ cutAfter: { bytes: 600, count: 1 } });
  expect((await ask(cdnUrl, { headers: { range: "bytes=0-599" } })).body).toHaveLength(600);
  const cut = await ask(cdnUrl, range);
  expect([cut.cut, cut.body.length, cut.headers["content-length"]]).toEqual([true, 600, "1000"]);
  expect((await ask(cdnUrl, range)).cut).toBe(false);
  expect(hub.struck("cutAfter")).toBe(1);
});

test("stallAt sends up to the position and then nothing", async () => {
  hub.setFaults({ stallAt: { bytes: 1500, count: 1 } });
  const stalled = await ask(cdnUrl, { ...range, timeoutMs: 200 });
  expect([stalled.cut, stalled.body.length]).toEqual([true, 500]);
  expect((await ask(cdnUrl, range)).body).toHaveLength(1000);
});

test("flipByteAt inverts one byte of the file, wherever the range starts", async () => {
  const struck = await strikesOnce({ flipByteAt: { bytes: 1234, count: 1 } });
  const right = await fileBytes(shard, 1000, 2000);
  const different = [...struck.body].flatMap((byte, i) => (byte === right[i] ? [] : [[i, byte ^ right[i]!]]));
  expect(different).toEqual([[234, 255]]);
});

test("range faults: ignored, shifted, 200 with the range, wrong total, wrong length, spurious 416", async () => {
  const ignored = await strikesOnce({ ignoreRange: 1 });
  expect([ignored.status, ignored.body.length, ignored.headers["content-range"]]).toEqual([
    200,
    shard.size,
    undefined,
  ]);
  const shifted = await strikesOnce({ shiftRange: { bytes: 10, count: 1 } });
  expect(shifted.headers["content-range"]).toBe(`bytes 990-1999/${shard.size}`);
  const as200 = await strikesOnce({ rangeAs200: 1 });
  expect([as200.status, as200.headers["content-range"]]).toEqual([200, `bytes 1000-1999/${shard.size}`]);
  const total = await strikesOnce({ wrongTotal: 1 });
  expect(total.headers["content-range"]).toBe(`bytes 1000-1999/${shard.size + 1}`);
  const longer = await strikesOnce({ wrongLength: { bytes: 5, count: 1 } });
  expect([longer.cut, longer.headers["content-length"]]).toEqual([false, undefined]);
  expect(longer.body.equals(await fileBytes(shard, 1000, 2005))).toBe(true);
  const shorter = await strikesOnce({ wrongLength: { bytes: -5, count: 1 } });
  expect([shorter.cut, shorter.headers["content-range"]]).toEqual([false, `bytes 1000-1999/${shard.size}`]);
  expect(shorter.body.equals(await fileBytes(shard, 1000, 1995))).toBe(true);
  const spurious = await strikesOnce({ spurious416: 1 });
  expect([spurious.status, spurious.headers["content-range"]]).toEqual([416, `bytes */${shard.size}`]);
});

test("storage faults: 503, 400, a login page, another ETag in the second half, no header auth", async () => {
  expect((await strikesOnce({ cdn503: 1 })).status).toBe(503);
  expect((await strikesOnce({ cdn400: 1 })).status).toBe(400);
  const html = await strikesOnce({ htmlInstead: 1 });
  expect([html.status, html.headers["content-type"]]).toEqual([200, "text/html"]);
  hub.setFaults({ etagChangesMidFile: true, cdnRejectsAuth: true });
  const first = await ask(cdnUrl, range);
  const second = await ask(cdnUrl, { headers: { range: "bytes=300000-300009" } });
  expect(second.headers.etag).not.toBe(first.headers.etag);
  expect((await ask(cdnUrl, { headers: { authorization: "Bearer hf_x" } })).status).toBe(400);
});

test("gzipWhenAsked ignores the range, but only for clients that accept gzip", async () => {
  hub.setFaults({ gzipWhenAsked: true });
  const packed = await ask(cdnUrl, { headers: { ...range.headers, "accept-encoding": "gzip, deflate" } });
  expect([packed.status, packed.headers["content-encoding"]]).toEqual([200, "gzip"]);
  expect(gunzipSync(packed.body)).toHaveLength(shard.size);
  expect((await ask(cdnUrl, { headers: { ...range.headers, "accept-encoding": "identity" } })).status).toBe(
    206,
  );
});

test("Hub faults: 429 with its headers, 503, wrong or missing facts, redirects that loop or leave", async () => {
  hub.setFaults({ hub429: { r: 0, t: 3, retryAfter: 2, count: 1 } });
  const limited = await ask(hubUrl);
  expect([limited.status, limited.headers["ratelimit"], limited.headers["retry-after"]]).toEqual([
    429,
    '"resolvers";r=0;t=3',
    "2",
  ]);
  hub.setFaults({ hub503: 1 });
  expect((await ask(hubUrl)).status).toBe(503);
  hub.setFaults({ wrongEtag: 1, wrongSize: 1 });
  const wrong = (await ask(hubUrl)).headers;
  const right = (await ask(hubUrl)).headers;
  expect(wrong["x-linked-etag"]).not.toBe(right["x-linked-etag"]);
  expect(Number(wrong["x-linked-size"])).toBe(shard.size + 1);
  hub.setFaults({ missingLinked: 1 });
  const missing = (await ask(hubUrl)).headers;
  expect([missing["x-linked-etag"], missing["x-linked-size"], missing["x-repo-commit"]]).toEqual([
    undefined,
    undefined,
    undefined,
  ]);
  hub.setFaults({ redirectLoop: 1 });
  expect(await located(hubUrl)).toBe(hubUrl);
  hub.setFaults({ locationHost: true });
  expect(new URL(await located(hubUrl)).hostname).toBe("127.0.0.3");
});

test("tree faults: foreign or repeated pages, a failing page, missing and unsafe entries", async () => {
  const next = async () => /<([^>]+)>; rel="next"/.exec((await ask(tree())).headers["link"] as string)?.[1];
  const honest = new URL((await next())!);
  expect(honest.origin).toBe(hub.endpoint);
  hub.setFaults({ page2_500: 1 });
  expect((await ask(honest.href)).status).toBe(500);
  expect((await ask(honest.href)).status).toBe(200);
  hub.setFaults({ linkRepeatCursor: true });
  expect(await next()).toBe(tree());
  hub.setFaults({ linkRepeatCursor: undefined, linkHost: true });
  const foreign = (await next())!;
  expect(new URL(foreign).hostname).toBe("127.0.0.3");
  expect((await ask(foreign)).body.toString()).toBe("[]");
  expect(hub.requests.at(-1)!.where).toBe("other");
  hub.clearFaults();
  hub.setFaults({ shortTree: 1 });
  expect((await ask(tree())).headers["link"]).toBeUndefined();
  hub.setFaults({ unsafePaths: ["../escape", "C:\\x"] });
  const names = (JSON.parse((await ask(tree())).body.toString()) as { path: string }[]).map(
    (row) => row.path,
  );
  expect(names).toEqual(["config.json", "../escape", "C:\\x"]);
});

test("a fault can be bound to a path and can wait", async () => {
  hub.setFaults({ hub503: { path: "config", skip: 1, count: 1 } });
  const config = `${hub.endpoint}/${REPO}/resolve/main/config.json`;
  const statuses = [];
  for (const url of [hubUrl, config, hubUrl, config, config]) statuses.push((await ask(url)).status);
  expect(statuses).toEqual([302, 307, 302, 503, 307]);
});

test("acceptQueueFull redirects to an address that never answers", async () => {
  hub.setFaults({ acceptQueueFull: 1 });
  const { hostname, port } = new URL(await located(hubUrl));
  const outcome = await new Promise((resolve) => {
    const socket = connect({ host: hostname, port: Number(port) });
    const timer = setTimeout(() => resolve("silence"), 300);
    socket.once("connect", () => resolve("connected"));
    socket.once("error", (error) => resolve(error.message));
    socket.once("close", () => clearTimeout(timer));
    setTimeout(() => socket.destroy(), 310);
  });
  expect(outcome).toBe("silence");
});

test("bps holds all connections together to the rate", async () => {
  hub.setFaults({ bps: 2_000_000 });
  const startedAt = performance.now();
  await Promise.all([ask(cdnUrl), ask(cdnUrl), ask(cdnUrl)]);
  // 1.2 MB at 2 MB/s cannot take less than 0.5 s on any machine; how much more is not asserted.
  expect(performance.now() - startedAt).toBeGreaterThan(500);
});
