import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { bytesFile, fileBytes, syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  expectComplete,
  KIB,
  MIB,
  run,
  sampleFiles,
  sentFor,
  serve,
  shardName,
  spawnRun,
  temporary,
  testOptions,
} from "./support.ts";

const SHARD = "model.safetensors";

const one = (bytes = 4 * MIB) => [syntheticFile(SHARD, bytes, { seed: 3 })];

describe("what hf left, and what it finds", () => {
  const incomplete = async (dir: string, name: string, suffix: string, bytes: Buffer) => {
    const b64 = createHash("sha1").update(`${name}.metadata`).digest("base64url");
    const padded = b64 + "=".repeat((4 - (b64.length % 4)) % 4);
    const path = join(dir, ".cache/huggingface/download", `${padded}.${suffix}.incomplete`);
    await mkdir(join(path, ".."), { recursive: true });
    await writeFile(path, bytes);
    return path;
  };

  it("the name of a partial is the one that hf gives it", async () => {
    const dir = await temporary();
    const path = await incomplete(dir, "model-00001-of-000003.safetensors", "x", Buffer.alloc(0));
    expect(path).toContain("uGj-vS0RKy9AFcsof0vc8LBQRmE=.x.incomplete"); // observed from hf 1.33
  });

  it("adopts a partial of either form but its last segment, when asked to", async () => {
    for (const form of ["", ".0123abcd"]) {
      const files = one();
      const hub = await serve(files);
      const dir = await temporary();
      const { sha256 } = await files[0]!.hashes();
      const path = await incomplete(
        dir,
        SHARD,
        `${sha256}${form}`,
        await fileBytes(files[0]!, 0, 2 * MIB + 1000),
      );
      const { result } = await run(hub, dir, { adoptPartials: true });
      expect(result.resumed_bytes).toBe(2 * MIB - 256 * KIB);
      expect(result.downloaded_bytes).toBe(4 * MIB - result.resumed_bytes);
      await expectComplete(dir, files);
      await expect(stat(path)).rejects.toThrow("ENOENT");
    }
  });

  it("what was adopted is not lost to a kill right after its rename into place", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    const { sha256 } = await files[0]!.hashes();
    await incomplete(dir, SHARD, sha256!, await fileBytes(files[0]!, 0, 2 * MIB + 1000));
    const before = `
      const fs = await import("node:fs/promises");
      const { syncBuiltinESMExports } = await import("node:module");
      const { rename } = fs.default;
      fs.default.rename = async (from, to) => {
        await rename(from, to);
        if (to.endsWith(".part")) process.kill(process.pid, "SIGKILL");
      };
      syncBuiltinESMExports();`;
    const { code } = await spawnRun(testOptions(hub, dir, { adoptPartials: true }), { before }).ended;
    expect(code).toBeNull();
    const { result } = await run(hub, dir);
    expect(result.resumed_bytes).toBe(2 * MIB - 256 * KIB);
    await expectComplete(dir, files);
  });

  it("does not touch partials unless asked to", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    const { sha256 } = await files[0]!.hashes();
    const path = await incomplete(dir, SHARD, sha256!, await fileBytes(files[0]!, 0, 2 * MIB));
    const { result } = await run(hub, dir);
    expect(result.resumed_bytes).toBe(0);
    expect((await stat(path)).size).toBe(2 * MIB);
  });

  it("a partial whose bytes are wrong costs only the adopted segments", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    const { sha256 } = await files[0]!.hashes();
    const bytes = await fileBytes(files[0]!, 0, 2 * MIB + 1000);
    bytes[5]! ^= 1;
    await incomplete(dir, SHARD, sha256!, bytes);
    const { result, messages } = await run(hub, dir, { adoptPartials: true });
    expect(messages.join("\n")).toMatch(/another program left/);
    expect(result.downloaded_bytes).toBe(4 * MIB);
    await expectComplete(dir, files);
  });

  it("leaves the layout of hub.md section 3: metadata not older than the file, the listing, the marks", async () => {
    const files = sampleFiles(300 * KIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir);
    const cache = join(dir, ".cache/huggingface");
    expect(await readFile(join(cache, ".gitignore"), "utf8")).toBe("*");
    expect(await readFile(join(cache, "CACHEDIR.TAG"), "utf8")).toMatch(
      /^Signature: 8a477f597d28d172789f06886806bc55\n/,
    );
    for (const file of files) {
      const text = await readFile(join(cache, "download", `${file.path}.metadata`), "utf8");
      const { sha256, oid } = await file.hashes();
      const [commit, etag, time, rest] = text.split("\n");
      expect([commit, etag, rest]).toEqual([result.revision, sha256 ?? oid, ""]);
      // hf trusts a file only while mtime - 1 s <= timestamp.
      expect((await stat(join(dir, file.path))).mtimeMs / 1000 - 1).toBeLessThanOrEqual(Number(time));
    }
    const tree = JSON.parse(await readFile(join(cache, "trees", `${result.revision}.json`), "utf8"));
    expect(tree.format_version).toBe(1);
    for (const file of files) {
      const { sha256, oid } = await file.hashes();
      expect(tree.files[file.path]).toMatchObject({
        size: file.size,
        blob_id: oid,
        ...(sha256 ? { lfs_sha256: sha256, lfs_size: file.size } : {}),
      });
    }
    // A later run has only the frozen manifest; the pointers' hashes follow from their form.
    await rm(join(cache, "trees"), { recursive: true });
    await run(hub, dir);
    const again = JSON.parse(await readFile(join(cache, "trees", `${result.revision}.json`), "utf8"));
    for (const file of files) expect(again.files[file.path].blob_id).toBe((await file.hashes()).oid);
  });

  it("a name that leaves no room for a temporary one, or for hf's record, is a name all the same", async () => {
    // 255 bytes are all that a name may have; ".metadata" has 9.
    const names = [237, 246, 247, 255].map((length) => `${"n".repeat(length - 5)}.json`);
    const files = names.map((name) => bytesFile(name, name));
    const hub = await serve(files);
    const dir = await temporary();
    await run(hub, dir);
    await expectComplete(dir, files);
    const records = await readdir(join(dir, ".cache/huggingface/download"));
    expect(records.sort()).toEqual(names.slice(0, 2).map((name) => `${name}.metadata`));
    const { result } = await run(hub, dir);
    expect(result.downloaded_bytes).toBe(0);
  });

  it("a directory complete by hf's account is hashed once, without a request for any file", async () => {
    const files = sampleFiles(300 * KIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    await run(hub, dir);
    await rm(join(dir, ".cache/k3"), { recursive: true });
    hub.clearLog();
    const { result } = await run(hub, dir);
    expect(hub.requests.filter((r) => r.path !== null)).toEqual([]);
    expect(result).toMatchObject({ downloaded_bytes: 0, resumed_bytes: result.bytes, verified: true });
  });

  it("T-24: a damaged shard is fetched again and no other is touched", async () => {
    const files = sampleFiles(300 * KIB, 3);
    const hub = await serve(files);
    const dir = await temporary();
    await run(hub, dir);
    const before = await Promise.all(
      [0, 2].map(async (i) => (await stat(join(dir, shardName(i, 3)))).ctimeMs),
    );
    await rm(join(dir, shardName(1, 3)));
    hub.clearLog();
    await run(hub, dir);
    const after = await Promise.all(
      [0, 2].map(async (i) => (await stat(join(dir, shardName(i, 3)))).ctimeMs),
    );
    expect(after).toEqual(before);
    expect(sentFor(hub, shardName(1, 3))).toBe(300 * KIB + 1);
  });
});
