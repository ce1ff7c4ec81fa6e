import { createHash } from "node:crypto";
import { mkdir, readFile, rm, stat, unlink, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { readReceipt, type StageEvent } from "@k3/stage";
import { describe, expect, test } from "vitest";
import { verify } from "../src/verify.ts";
import {
  age,
  freeze,
  listed,
  model,
  outcome,
  overwrite,
  put,
  REPO,
  REVISION,
  shard,
  temporaryDirectory,
  writeModel,
} from "./model.ts";

describe("a sound directory", () => {
  test.each(["sizes", "structure", "hashes"] as const)("passes at level %s", async (level) => {
    const dir = await model();
    const result = await verify({ dir, level });
    expect(result).toMatchObject({
      ok: true,
      level,
      repo: REPO,
      revision: REVISION,
      checked: 10,
      from_journal: 0,
      faults: [],
      extra: [],
    });
    const sizes = await Promise.all([1, 2, 3, 4, 5].map(async (n) => (await stat(join(dir, shard(n)))).size));
    expect(result.bytes).toBeGreaterThan(sizes.reduce((sum, size) => sum + size, 0));
    expect(result.bytes_read).toBe(level === "hashes" ? result.bytes : 0);
  });

  test("gets a receipt: every file with its hash and the CRC-32 of its chunks", async () => {
    const dir = await model();
    await verify({ dir });
    const receipt = (await readReceipt(dir))!;
    expect(receipt).toMatchObject({ repo: REPO, revision: REVISION, damaged: [] });
    expect(receipt.files).toHaveLength(10);
    for (const { path, identity, algorithm, hash, how, crc32: crcs } of receipt.files) {
      const bytes = await readFile(join(dir, path));
      const { sha256, gitSha1 } = await listed(dir, path);
      expect({ path, size: identity.size, hash: sha256 ?? gitSha1, how, algorithm }).toEqual({
        path,
        size: bytes.length,
        hash,
        how: "read",
        algorithm: sha256 ? "sha256" : "git-sha1",
      });
      expect(crcs).toEqual(bytes.length === 0 ? [] : [crc32(bytes)]);
    }
  });

  test("is not read again while its files are unchanged, and is with recheck", async () => {
    const dir = await model();
    const first = await verify({ dir });
    const second = await verify({ dir });
    expect(second).toMatchObject({ ok: true, from_journal: 10, bytes_read: 0, bytes: first.bytes });
    expect((await readReceipt(dir))!.files.map(({ how }) => how)).toEqual(new Array(10).fill("journal"));
    expect(await verify({ dir, recheck: true })).toMatchObject({
      ok: true,
      from_journal: 0,
      bytes_read: first.bytes,
    });
  });

  test("is read again where a file was touched, however its times were set afterwards", async () => {
    const dir = await model();
    await verify({ dir });
    await overwrite(join(dir, shard(2)), -1, "x");
    await age(join(dir, "config.json"));
    const { faults, result } = await outcome({ dir });
    expect(faults.map(({ path, kind }) => [path, kind])).toEqual([[shard(2), "hash"]]);
    expect(result!.from_journal).toBe(8);
  });

  test("files that were written while they were hashed, or just before, are not trusted", async () => {
    const dir = await model();
    const soon = new Date(Date.now() + 10_000);
    await utimes(join(dir, shard(1)), soon, soon);
    await verify({ dir });
    expect(await verify({ dir })).toMatchObject({ ok: true, from_journal: 9 });
  });

  test("in a directory that holds only what was selected", async () => {
    const dir = await model();
    for (const n of [2, 3, 4]) await unlink(join(dir, shard(n)));
    const kept = ["config.json", shard(1), shard(5)];
    const full = await temporaryDirectory();
    await writeModel(full);
    const { files } = await freeze(full);
    await freeze(dir, kept, { files, selected: kept });
    expect(await verify({ dir })).toMatchObject({ ok: true, checked: 3 });
  });

  test("reads with several jobs what it reads with one", async () => {
    const dir = await model();
    expect(await verify({ dir, jobs: 4 })).toMatchObject({ ok: true, checked: 10 });
    expect((await readReceipt(dir))!.files.map(({ path }) => path)).toEqual(
      [...(await readReceipt(dir))!.files.map(({ path }) => path)].sort(),
    );
  });

  test("without a manifest: structure is the most, and says what to give for more", async () => {
    const dir = await temporaryDirectory();
    await writeModel(dir);
    expect(await verify({ dir, level: "structure" })).toMatchObject({ ok: true, checked: 5, revision: null });
    for (const level of ["sizes", "hashes"] as const) {
      const { error, exit } = await outcome({ dir, level });
      expect(exit).toBe(2);
      expect(error!.message).toContain("structure is the most that can");
      expect(error!.hint).toContain("--level structure");
    }
    await mkdir(join(dir, ".cache/huggingface/trees"), { recursive: true });
    await writeFile(join(dir, ".cache/huggingface/trees", `${REVISION}.json`), "{}");
    expect((await outcome({ dir })).error!.hint).toContain(
      `--manifest ${dir}/.cache/huggingface/trees/${REVISION}.json`,
    );
  });

  test("with a tree file of hf", async () => {
    const dir = await temporaryDirectory();
    await writeModel(dir);
    const paths = ["config.json", ...[1, 2, 3, 4, 5].map(shard)];
    const files = Object.fromEntries(
      await Promise.all(
        paths.map(async (path) => {
          const { size, sha256, gitSha1 } = await listed(dir, path);
          return [
            path,
            {
              size,
              blob_id: gitSha1 ?? "0".repeat(40),
              ...(sha256 ? { lfs_sha256: sha256, lfs_size: size } : {}),
            },
          ];
        }),
      ),
    );
    const manifest = join(await temporaryDirectory(), `${REVISION}.json`);
    await writeFile(manifest, JSON.stringify({ format_version: 1, files }));
    expect(await verify({ dir, manifest })).toMatchObject({
      ok: true,
      checked: 6,
      revision: REVISION,
      repo: null,
      extra: expect.arrayContaining(["tiktoken.model"]),
    });
    await overwrite(join(dir, shard(4)), -1, "y");
    expect((await outcome({ dir, manifest })).faults).toEqual([
      expect.objectContaining({ kind: "hash", path: shard(4) }),
    ]);
  });

  test("with our manifest given as a file", async () => {
    const dir = await model();
    const manifest = join(await temporaryDirectory(), "frozen.json");
    await writeFile(manifest, await readFile(join(dir, ".cache/k3/snapshot.json")));
    await rm(join(dir, ".cache"), { recursive: true });
    expect(await verify({ dir, manifest })).toMatchObject({ ok: true, revision: REVISION });
  });

  test("may have links to files, folders of local state, and nothing of it is touched", async () => {
    const dir = await model();
    await put(dir, ".cache/huggingface/download/x.metadata", "1");
    const before = await Promise.all([1, 2, 3].map((n) => stat(join(dir, shard(n)), { bigint: true })));
    expect(await verify({ dir, failOnExtra: true })).toMatchObject({ ok: true, extra: [] });
    const after = await Promise.all([1, 2, 3].map((n) => stat(join(dir, shard(n)), { bigint: true })));
    expect(after.map(({ ctimeNs, size }) => [ctimeNs, size])).toEqual(
      before.map(({ ctimeNs, size }) => [ctimeNs, size]),
    );
  });

  test("shows sizes before hashes, and how far it is", async () => {
    const dir = await model();
    await unlink(join(dir, "tiktoken.model"));
    const events: StageEvent[] = [];
    await outcome({ dir, onEvent: (event) => events.push(event) });
    const fault = events.findIndex(
      (event) => event.type === "log" && event.message.includes("tiktoken.model: missing"),
    );
    const hashing = events.findIndex((event) => event.type === "progress" && event.phase === "hashing");
    expect(fault).toBeGreaterThanOrEqual(0);
    expect(fault).toBeLessThan(hashing);
    const last = events.filter((event) => event.type === "progress").at(-1)!;
    expect(last).toMatchObject({ phase: "hashing", unit: "bytes" });
    expect(last.done).toBe(last.total);
  });

  test("git and LFS hashes are those of the tools", async () => {
    // printf 'hello\n' | git hash-object --stdin; the SHA-256 of the same bytes.
    expect(createHash("sha1").update("blob 6\0hello\n").digest("hex")).toBe(
      "ce013625030ba8dba906f756967f9e9ca394464a",
    );
    const dir = await temporaryDirectory();
    await put(dir, "config.json", "hello\n");
    await put(dir, "a.bin", "hello\n");
    const manifest = join(dir, `${REVISION}.json`);
    const sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
    await writeFile(
      manifest,
      JSON.stringify({
        format_version: 1,
        files: {
          "a.txt": { size: 6, blob_id: "ce013625030ba8dba906f756967f9e9ca394464a" },
          "a.bin": { size: 6, blob_id: "0".repeat(40), lfs_sha256: sha256, lfs_size: 6 },
        },
      }),
    );
    await put(dir, "a.txt", "hello\n");
    const { faults } = await outcome({ dir, manifest });
    expect(faults.filter(({ kind }) => kind === "hash")).toEqual([]);
  });
});
