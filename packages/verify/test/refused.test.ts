import { rm, truncate, unlink } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import type { VerifyOptions } from "../src/types.ts";
import { freeze, model, outcome, put, shard } from "./model.ts";

const TWO = shard(2);

describe("what is refused with an error", () => {
  const refused: [string, (dir: string) => Promise<unknown>, Partial<VerifyOptions>, number, RegExp][] = [
    [
      "a published config.json that is not of K3",
      async (dir) => {
        await put(dir, "config.json", '{"model_type":"llama"}');
        await freeze(dir);
      },
      {},
      2,
      /hidden_size is missing/,
    ],
    [
      "the same without a manifest",
      async (dir) => {
        await put(dir, "config.json", "{}");
        await rm(join(dir, ".cache"), { recursive: true });
      },
      { level: "structure" },
      2,
      /num_hidden_layers is missing/,
    ],
    [
      "no config.json and no manifest",
      async (dir) => {
        await unlink(join(dir, "config.json"));
        await rm(join(dir, ".cache"), { recursive: true });
      },
      { level: "structure" },
      3,
      /no config.json/,
    ],
    [
      "a directory that is not there",
      async (dir) => rm(dir, { recursive: true }),
      {},
      3,
      /no such directory/,
    ],
    [
      "a manifest that is torn",
      async (dir) => truncate(join(dir, ".cache/k3/snapshot.json"), 200),
      {},
      3,
      /not a snapshot manifest/,
    ],
    [
      "a manifest without a SHA-256 for a large file",
      async (dir) => {
        const { files } = await freeze(dir);
        await freeze(dir, [], {
          files: files.map(({ path, size }) =>
            path === TWO
              ? { path, size: 17_000_000_000, gitSha1: "1".repeat(40) }
              : { path, size, gitSha1: "2".repeat(40) },
          ),
        });
      },
      {},
      3,
      /no SHA-256 for model-00002.*17.0 GB/,
    ],
    [
      "a manifest without any hash for a file",
      async (dir) => {
        const { files } = await freeze(dir);
        await freeze(dir, [], { files: files.map(({ path, size }) => ({ path, size })) });
      },
      {},
      3,
      /no hash for/,
    ],
    [
      "a manifest that leads out of the directory",
      async (dir) => {
        await freeze(dir, [], { files: [{ path: "../../etc/passwd", size: 1, gitSha1: "1".repeat(40) }] });
      },
      {},
      3,
      /unsafe path/,
    ],
    [
      "a manifest with an absolute path",
      async (dir) => {
        await freeze(dir, [], { files: [{ path: "/etc/passwd", size: 1, gitSha1: "1".repeat(40) }] });
      },
      {},
      3,
      /unsafe path/,
    ],
    [
      "a manifest that lists our own state",
      async (dir) => {
        await freeze(dir, [], {
          files: [{ path: ".cache/k3/verify.json", size: 1, gitSha1: "1".repeat(40) }],
        });
      },
      {},
      3,
      /unsafe path/,
    ],
    [
      "a manifest that lists a file twice",
      async (dir) => {
        const { files } = await freeze(dir);
        await freeze(dir, [], { files: [...files, files[0]!] });
      },
      {},
      3,
      /listed twice/,
    ],
    [
      "a tree file that is none",
      async (dir) => put(dir, "tree.json", '{"files":[]}'),
      { manifest: "tree.json" },
      3,
      /neither a k3 snapshot manifest nor/,
    ],
    [
      "a manifest file that is not there",
      async () => undefined,
      { manifest: "nowhere.json" },
      3,
      /no such file/,
    ],
    [
      "a manifest and a repository",
      async () => undefined,
      { manifest: "x", repo: "a/b" },
      2,
      /two sources of truth/,
    ],
    [
      "a repository at a moving name",
      async () => undefined,
      { repo: "a/b", revision: "main" },
      2,
      /a moving name proves nothing/,
    ],
    ["a repository without a commit", async () => undefined, { repo: "a/b" }, 2, /not a commit/],
    [
      "a commit without a repository",
      async () => undefined,
      { revision: "1".repeat(40) },
      2,
      /names no files/,
    ],
    ["no jobs", async () => undefined, { jobs: 0 }, 2, /jobs must be/],
    [
      "damage since a receipt that does not exist",
      async () => undefined,
      { sinceReceipt: true },
      2,
      /has no receipt/,
    ],
    [
      "damage since a receipt, at level structure",
      async () => undefined,
      { sinceReceipt: true, level: "structure" },
      2,
      /hashes only/,
    ],
    [
      "surplus files without a manifest",
      async (dir) => rm(join(dir, ".cache"), { recursive: true }),
      { failOnExtra: true, level: "structure" },
      2,
      /surplus files cannot be verified/,
    ],
  ];
  test.each(refused)("%s", async (_, damage, options, exit, message) => {
    const dir = await model();
    await damage(dir);
    const manifest = options.manifest === undefined ? {} : { manifest: join(dir, options.manifest) };
    const { error, exit: found } = await outcome({ dir, ...options, ...manifest });
    expect([found, error!.message]).toEqual([exit, expect.stringMatching(message)]);
  });
});
