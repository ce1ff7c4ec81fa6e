import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Hub, type HubOptions, serveDirectory, startBlackHole } from "@k3/testkit";
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { guardedFetch } from "../src/guarded-fetch.ts";
import { accessToken } from "../src/token.ts";
import { outcome, overwrite, shard, temporaryDirectory, writeModel } from "./model.ts";

beforeEach(() => {
  vi.stubEnv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
  vi.stubEnv("HF_ENDPOINT", "");
});
afterEach(() => vi.unstubAllEnvs());

/** A model's directory and a Hub that serves the same bytes. */
async function served(
  options: Partial<HubOptions> = {},
): Promise<{ hub: Hub & { repo: string; commit: string }; dir: string }> {
  const dir = await temporaryDirectory();
  await writeModel(dir);
  const hub = await serveDirectory(dir, options);
  onTestFinished(() => hub.close());
  return { hub, dir };
}

describe("metadata from the Hub at a commit", () => {
  test("all pages of it, and nothing but metadata is loaded", async () => {
    const { hub, dir } = await served({ pageSize: 3 });
    const source = { repo: hub.repo, revision: hub.commit, endpoint: hub.endpoint };
    const { result } = await outcome({ dir, ...source });
    expect(result).toMatchObject({ ok: true, checked: 9, repo: hub.repo, revision: hub.commit });
    expect(hub.bodyBytes()).toBe(0);
    expect(hub.requests.length).toBeGreaterThan(3);
    await overwrite(join(dir, shard(2)), -1, "!");
    expect((await outcome({ dir, ...source })).faults).toEqual([
      expect.objectContaining({ path: shard(2), kind: "hash" }),
    ]);
  });

  test("from HF_ENDPOINT", async () => {
    const { hub, dir } = await served();
    vi.stubEnv("HF_ENDPOINT", `${hub.endpoint}/`);
    expect((await outcome({ dir, repo: hub.repo, revision: hub.commit })).exit).toBe(0);
  });

  test("with a token of any form, sent to the endpoint and to nobody else", async () => {
    const { hub, dir } = await served({ tokens: ["not-hf-shaped"], pageSize: 2 });
    const source = { dir, repo: hub.repo, revision: hub.commit, endpoint: hub.endpoint };
    expect((await outcome(source)).exit).toBe(0);
    expect((await outcome({ ...source, token: "not-hf-shaped" })).exit).toBe(0);
    expect((await outcome({ ...source, token: "wrong" })).error).toMatchObject({
      code: "E_HUB",
      exit: 6,
      hint: expect.stringContaining("HF_TOKEN"),
    });
    hub.setFaults({ linkHost: true });
    const { error } = await outcome({ ...source, token: "not-hf-shaped" });
    expect(error).toMatchObject({ code: "E_HUB", exit: 6, message: expect.stringContaining("another host") });
    expect(hub.requests.filter(({ where }) => where !== "hub")).toEqual([]);
  });

  test("a page that comes again ends it", async () => {
    const { hub, dir } = await served({ pageSize: 4 });
    hub.setFaults({ linkRepeatCursor: 1 });
    const { error } = await outcome({ dir, repo: hub.repo, revision: hub.commit, endpoint: hub.endpoint });
    expect(error).toMatchObject({ exit: 6, message: expect.stringContaining("circle") });
  });

  test("an unsafe path in it is refused", async () => {
    const { hub, dir } = await served();
    hub.setFaults({ unsafePaths: ["..\\..\\evil"] });
    const { error } = await outcome({ dir, repo: hub.repo, revision: hub.commit, endpoint: hub.endpoint });
    expect(error!.message).toContain("unsafe path");
  });

  test("a listing that ends too early is noticed", async () => {
    const { hub, dir } = await served();
    hub.setFaults({ shortTree: 2 });
    const { error } = await outcome({ dir, repo: hub.repo, revision: hub.commit, endpoint: hub.endpoint });
    expect(error).toMatchObject({
      code: "E_HUB",
      exit: 6,
      message: expect.stringContaining("2 files of the commit are not in it"),
    });
  });

  test("a page that fails once is asked for again", async () => {
    const { hub, dir } = await served({ pageSize: 4 });
    hub.setFaults({ page2_500: 1 });
    expect((await outcome({ dir, repo: hub.repo, revision: hub.commit, endpoint: hub.endpoint })).exit).toBe(
      0,
    );
    expect(hub.struck("page2_500")).toBe(1);
  });

  test("a rate limit is waited for as long as the Hub says", async () => {
    const { hub, dir } = await served();
    hub.setFaults({ hub429: { r: 0, t: 1, count: 1 } });
    const { result } = await outcome({ dir, repo: hub.repo, revision: hub.commit, endpoint: hub.endpoint });
    expect(result).toMatchObject({ ok: true });
  });

  test.each<[string, { repo?: string; revision?: string }]>([
    ["a repository that does not exist", { repo: "nobody/nothing" }],
    ["a commit that does not exist", { revision: "f".repeat(40) }],
  ])("%s: refused at once", async (_, changes) => {
    const { hub, dir } = await served();
    const { error } = await outcome({
      dir,
      repo: hub.repo,
      revision: hub.commit,
      endpoint: hub.endpoint,
      ...changes,
    });
    expect(error).toMatchObject({ code: "E_HUB", exit: 6 });
    expect(hub.requests).toHaveLength(1);
  });

  test.each(["../../api/whoami", "a/b/c", "", "a b"])(
    "the repository name %j: a usage error",
    async (repo) => {
      expect((await outcome({ dir: await temporaryDirectory(), repo, revision: "f".repeat(40) })).exit).toBe(
        2,
      );
    },
  );

  test.each(["ftp://x", "https://user:secret@host", "nonsense"])(
    "the endpoint %j: a usage error that does not repeat it",
    async (endpoint) => {
      const { error } = await outcome({
        dir: await temporaryDirectory(),
        repo: "a/b",
        revision: "f".repeat(40),
        endpoint,
      });
      expect(error).toMatchObject({ exit: 2 });
      expect(error!.message).not.toContain("secret");
    },
  );
});

describe("the guarded fetch", () => {
  const guarded = (endpoint: string, signal?: AbortSignal) => {
    const guard = guardedFetch({ endpoint, token: undefined, backoffMs: 1, signal });
    onTestFinished(() => guard.close());
    return guard.fetch;
  };

  test("gives up on an endpoint that is not there, with exit 6", async () => {
    const { hub } = await served();
    const { endpoint } = hub;
    await hub.close();
    await expect(guarded(endpoint)(`${endpoint}/api/x`)).rejects.toMatchObject({
      code: "E_NETWORK",
      exit: 6,
      message: expect.stringContaining("ECONNREFUSED"),
    });
  });

  test("gives up on an endpoint that only fails, after five attempts", async () => {
    const { hub } = await served();
    hub.setFaults({ hub503: true });
    await expect(
      guarded(hub.endpoint)(`${hub.endpoint}/api/models/${hub.repo}/tree/main`),
    ).rejects.toMatchObject({ code: "E_NETWORK" });
    expect(hub.requests).toHaveLength(5);
  });

  test("asks no other origin, not even another port of the same host", async () => {
    const { hub } = await served();
    await expect(guarded("http://127.0.0.1:1")(`${hub.endpoint}/api`)).rejects.toMatchObject({
      code: "E_HUB",
    });
    expect(hub.requests).toHaveLength(0);
  });

  test("stops at once when it is told to, in a connection that hangs and in a wait", async () => {
    const hole = await startBlackHole();
    onTestFinished(() => hole.close());
    const controller = new AbortController();
    const asked = guarded(hole.origin, controller.signal)(`${hole.origin}/api`);
    setTimeout(() => controller.abort(), 50);
    await expect(asked).rejects.toMatchObject({ code: "E_INTERRUPTED", exit: 130 });
  });
});

describe("the access token", () => {
  const found = async (given: string | undefined, env: NodeJS.ProcessEnv) => accessToken(given, env);
  test("comes from the option, the environment, or the file of the login, in this order", async () => {
    const home = await temporaryDirectory();
    await writeFile(join(home, "token"), "from-file\n");
    const env = { HF_HOME: home, HF_TOKEN: "from-env" };
    expect(await found("given", env)).toBe("given");
    expect(await found(undefined, env)).toBe("from-env");
    expect(await found(undefined, { HF_HOME: home, HUGGING_FACE_HUB_TOKEN: "old" })).toBe("old");
    expect(await found(undefined, { HF_HOME: home })).toBe("from-file");
    expect(await found(undefined, { HF_TOKEN_PATH: join(home, "token") })).toBe("from-file");
    expect(await found(undefined, { HF_TOKEN_PATH: join(home, "nothing") })).toBeUndefined();
    expect(await found(undefined, { ...env, HF_HUB_DISABLE_IMPLICIT_TOKEN: "1" })).toBeUndefined();
    expect(await found("", env)).toBeUndefined();
  });
  test("that is none is refused without showing it", async () => {
    await expect(found("two words\nx", {})).rejects.toMatchObject({
      code: "E_USAGE",
      message: expect.not.stringContaining("two"),
    });
  });
});
