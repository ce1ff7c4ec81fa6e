import { createHash } from "node:crypto";
import { gunzipSync } from "node:zlib";
import { listFiles, modelInfo, pathsInfo } from "@huggingface/hub";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { bytesFile, fileBytes, type Hub, type HubFile, startHub, syntheticFile } from "../src/index.ts";
import { ask, located } from "./client.ts";

const REPO = "k3/sample";
const CONFIG = '{"hidden_size": 8}\n';
const files: HubFile[] = [
  bytesFile("config.json", CONFIG),
  bytesFile("empty.txt", ""),
  bytesFile("sub/deep/notes.txt", "nested\n"),
  bytesFile("a name#100% ü.txt", "odd\n"),
  syntheticFile("model-00001-of-000002.safetensors", 3_000_001, { seed: 1 }),
  syntheticFile("model-00002-of-000002.safetensors", 2_000_000, { seed: 2 }),
];
const shard = files[4]!;
const sha = (bytes: Uint8Array, algorithm = "sha256") => createHash(algorithm).update(bytes).digest("hex");

let hub: Hub;
let resolve: (path: string, revision?: string) => string;
beforeEach(async () => {
  hub = await startHub({ repositories: [{ name: REPO, files }] });
  resolve = (path, revision = "main") =>
    `${hub.endpoint}/${REPO}/resolve/${encodeURIComponent(revision)}/${path.split("/").map(encodeURIComponent).join("/")}`;
});
afterEach(() => hub.close());

describe("metadata", () => {
  test("a public client resolves main and lists every file with its hashes, page by page", async () => {
    await hub.close();
    hub = await startHub({ repositories: [{ name: REPO, files }], pageSize: 3 });
    const info = await modelInfo({ name: REPO, hubUrl: hub.endpoint, additionalFields: ["sha"] });
    expect(info.sha).toMatch(/^[0-9a-f]{40}$/);
    const listed = [];
    for await (const entry of listFiles({
      repo: REPO,
      revision: info.sha,
      recursive: true,
      hubUrl: hub.endpoint,
    })) {
      listed.push(entry);
    }
    expect(listed.filter((entry) => entry.type === "file").map((entry) => entry.path)).toEqual(
      files.map((f) => f.path).sort(),
    );
    expect(listed.filter((entry) => entry.type === "directory").map((entry) => entry.path)).toEqual([
      "sub",
      "sub/deep",
    ]);
    expect(hub.requests.filter((request) => request.url.includes("/tree/")).length).toBe(3);
    const byPath = new Map(listed.map((entry) => [entry.path, entry]));
    expect(byPath.get(shard.path)!.lfs!.oid).toBe(sha(await fileBytes(shard)));
    expect(byPath.get("config.json")!.oid).toBe(sha(Buffer.from(`blob ${CONFIG.length}\0${CONFIG}`), "sha1"));
    // The well-known blob of no bytes.
    expect(byPath.get("empty.txt")!.oid).toBe("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  });

  test("a folder can be listed alone, and paths-info takes JSON and forms", async () => {
    const entries = [];
    for await (const entry of listFiles({ repo: REPO, path: "sub", hubUrl: hub.endpoint }))
      entries.push(entry.path);
    expect(entries).toEqual(["sub/deep"]);
    const found = await pathsInfo({ repo: REPO, paths: ["config.json", "nothing"], hubUrl: hub.endpoint });
    expect(found.map((entry) => entry.path)).toEqual(["config.json"]);
    const form = await ask(`${hub.endpoint}/api/models/${REPO}/paths-info/main`, {
      method: "POST",
      headers: { "content-type": "application/x-www-form-urlencoded" },
      body: "paths=config.json&paths=empty.txt&expand=False",
    });
    expect(JSON.parse(form.body.toString())).toHaveLength(2);
  });

  test("the same content is the same commit, other content another one; old commits stay", async () => {
    const repository = hub.repository(REPO);
    const first = repository.resolve("main")!.sha;
    const other = await startHub({ repositories: [{ name: "a/b", files: [...files].reverse() }] });
    expect(other.repository("a/b").resolve("main")!.sha).toBe(first);
    await other.close();
    const second = await repository.commit([bytesFile("config.json", "{}")], { refs: ["main", "refs/pr/1"] });
    expect(second).not.toBe(first);
    expect((await ask(resolve("empty.txt", first))).status).toBe(200);
    expect((await ask(resolve("empty.txt"))).headers["x-error-code"]).toBe("EntryNotFound");
    expect((await ask(resolve("config.json", "refs/pr/1"))).headers["x-repo-commit"]).toBe(second);
    expect((await ask(resolve("config.json", "nonesuch"))).headers["x-error-code"]).toBe("RevisionNotFound");
  });

  test("every answer of the Hub carries the rate limit, and a spent window is 429", async () => {
    await hub.close();
    hub = await startHub({ repositories: [{ name: REPO, files }], limits: { resolvers: { q: 2, w: 300 } } });
    expect((await ask(resolve("empty.txt"))).headers["ratelimit"]).toMatch(/^"resolvers";r=1;t=\d+$/);
    await ask(resolve("empty.txt"));
    const refused = await ask(resolve("empty.txt"));
    expect(refused.status).toBe(429);
    expect(refused.headers["ratelimit-policy"]).toBe('"fixed window";"resolvers";q=2;w=300');
  });
});

describe("bodies", () => {
  test("an LFS file is a redirect with its facts, to another host, whose ETag is not the SHA-256", async () => {
    const { sha256 } = await shard.hashes();
    const head = await ask(resolve(shard.path), { method: "HEAD" });
    expect(head.status).toBe(302);
    expect(head.headers["x-linked-etag"]).toBe(`"${sha256}"`);
    expect(head.headers["x-linked-size"]).toBe(String(shard.size));
    expect(head.headers["x-repo-commit"]).toBe(hub.repository(REPO).resolve("main")!.sha);
    expect(head.headers["x-xet-hash"]).toMatch(/^[0-9a-f]{64}$/);
    const location = new URL(head.headers.location!);
    expect(location.hostname).toBe("127.0.0.2");
    expect(location.searchParams.get("X-Amz-Expires")).toBe("3600");
    const whole = await ask(location.href);
    expect(whole.status).toBe(200);
    expect(sha(whole.body)).toBe(sha256);
    expect(whole.headers.etag).toMatch(/^"[0-9a-f]{64}"$/);
    expect(whole.headers.etag).not.toBe(`"${sha256}"`);
  });

  test("ranges are exact, at the edges too", async () => {
    const location = await located(resolve(shard.path));
    const bytes = await fileBytes(shard);
    for (const [range, start, end] of [
      ["bytes=0-0", 0, 1],
      ["bytes=1048570-1048585", 1048570, 1048586],
      ["bytes=2999990-", 2999990, 3000001],
      ["bytes=-5", 2999996, 3000001],
      ["bytes=2999990-9999999", 2999990, 3000001],
    ] as const) {
      const part = await ask(location, { headers: { range } });
      expect(part.status).toBe(206);
      expect(part.headers["content-range"]).toBe(`bytes ${start}-${end - 1}/${shard.size}`);
      expect(part.body.equals(bytes.subarray(start, end))).toBe(true);
    }
    const beyond = await ask(location, { headers: { range: "bytes=3000001-" } });
    expect(beyond.status).toBe(416);
    expect(beyond.headers["content-range"]).toBe(`bytes */${shard.size}`);
  });

  test("a plain file is a 307 to the resolve cache, compressed only when asked", async () => {
    const location = await located(resolve("config.json"));
    expect(new URL(location).pathname).toMatch(
      /^\/api\/resolve-cache\/models\/k3\/sample\/[0-9a-f]{40}\/config\.json$/,
    );
    const plain = await ask(location, { headers: { "accept-encoding": "identity" } });
    expect(plain.body.toString()).toBe(CONFIG);
    expect(plain.headers["content-length"]).toBe(String(CONFIG.length));
    const packed = await ask(location, { headers: { "accept-encoding": "gzip" } });
    expect(packed.headers["content-length"]).toBeUndefined();
    expect(gunzipSync(packed.body).toString()).toBe(CONFIG);
  });

  test("an empty file comes at once, odd names survive, raw is the pointer", async () => {
    const empty = await ask(resolve("empty.txt"));
    expect([empty.status, empty.body.length, empty.headers["content-length"]]).toEqual([200, 0, "0"]);
    expect((await ask(await located(resolve("a name#100% ü.txt")))).body.toString()).toBe("odd\n");
    const raw = await ask(resolve(shard.path).replace("/resolve/", "/raw/"));
    expect(raw.body.toString()).toContain(`oid sha256:${(await shard.hashes()).sha256}\nsize ${shard.size}`);
  });

  test("a signed URL expires, and a forged one never works", async () => {
    hub.setFaults({ ttlMs: -1 });
    const expired = await ask(await located(resolve(shard.path)));
    expect(expired.status).toBe(403);
    expect(expired.body.toString()).toContain("Request has expired");
    hub.clearFaults();
    const forged = new URL(await located(resolve(shard.path)));
    forged.searchParams.set("x-ms", "9999999999999");
    expect((await ask(forged.href)).status).toBe(403);
  });

  test("a synthetic file of 16 GB costs nothing and answers any range", async () => {
    const huge = syntheticFile("huge.safetensors", 16_250_000_000, { sha256: "ab".repeat(32) });
    await hub.repository(REPO).commit([huge]);
    const location = await located(resolve(huge.path));
    const part = await ask(location, { headers: { range: "bytes=16249999990-16249999999" } });
    expect(part.headers["content-range"]).toBe("bytes 16249999990-16249999999/16250000000");
    expect(part.body.equals(await fileBytes(huge, 16_249_999_990, 16_250_000_000))).toBe(true);
  });
});

describe("access", () => {
  const bearer = (token: string) => ({ headers: { authorization: `Bearer ${token}` } });

  test("private, gated and invalid tokens answer as the Hub does", async () => {
    await hub.close();
    hub = await startHub({
      repositories: [
        { name: "k3/hidden", files, private: true },
        { name: "k3/gate", files, gated: true, granted: ["hf_good"] },
      ],
      tokens: ["hf_good", "hf_other"],
    });
    const at = (repo: string) => `${hub.endpoint}/${repo}/resolve/main/config.json`;
    const seen = async (repo: string, options = {}) => {
      const { status, headers } = await ask(at(repo), options);
      return [status, headers["x-error-code"]];
    };
    expect(await seen("k3/hidden")).toEqual([401, "RepoNotFound"]);
    expect(await seen("k3/nothing")).toEqual([401, "RepoNotFound"]);
    expect(await seen("k3/nothing", bearer("hf_good"))).toEqual([404, "RepoNotFound"]);
    expect(await seen("k3/hidden", bearer("hf_good"))).toEqual([200, undefined]);
    expect(await seen("k3/hidden", bearer("bad"))).toEqual([401, undefined]);
    expect(await seen("k3/gate")).toEqual([401, "GatedRepo"]);
    expect(await seen("k3/gate", bearer("hf_other"))).toEqual([403, "GatedRepo"]);
    expect(await seen("k3/gate", bearer("hf_good"))).toEqual([200, undefined]);
  });

  test("the log has every request with what was asked, answered and sent", async () => {
    const location = await located(resolve(shard.path));
    await ask(location, { headers: { range: "bytes=0-99", authorization: "Bearer leaked" } });
    expect(hub.requests).toHaveLength(2);
    expect(hub.requests[0]).toMatchObject({
      where: "hub",
      method: "HEAD",
      status: 302,
      bytesSent: 0,
      auth: null,
    });
    expect(hub.requests[1]).toMatchObject({
      where: "cdn",
      method: "GET",
      path: shard.path,
      range: "bytes=0-99",
      auth: "Bearer leaked",
      status: 206,
      bytesSent: 100,
    });
    expect(hub.bodyBytes()).toBe(100);
  });
});
