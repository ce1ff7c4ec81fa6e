import { join } from "node:path";
import { type Hub, type HubOptions, serveDirectory } from "@k3/testkit";
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
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
