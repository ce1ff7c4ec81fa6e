import { createHash } from "node:crypto";
import { existsSync, readFileSync, statSync, utimesSync } from "node:fs";
import {
  copyFile,
  cp,
  mkdir,
  open,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  truncate,
  utimes,
  writeFile,
} from "node:fs/promises";
import { join } from "node:path";
import { writeSnapshot } from "@k3/stage";
import { openTrunk } from "@k3/trunk";
import { describe, expect, it } from "vitest";
import { pack } from "../src/index.ts";
import { madeCheckpoint, temporaryDirectory, trunkDigest } from "./fixture.ts";

/** A pack that is stopped as soon as its journal has some blocks. It may finish before that: then it is done again. */
async function interrupted(
  modelDir: string,
  trunkDir: string,
  codec: "bf16" | "none" = "bf16",
): Promise<void> {
  const older = join(await temporaryDirectory(), "older");
  if (existsSync(trunkDir)) await cp(trunkDir, older, { recursive: true });
  for (let attempt = 0; attempt < 20; attempt++) {
    const abort = new AbortController();
    const timer = setInterval(() => {
      const journal = join(trunkDir, "trunk.journal");
      if (existsSync(journal) && statSync(journal).size > 5000) abort.abort();
    }, 1);
    try {
      await pack({
        modelDir,
        trunkDir,
        codec,
        threads: 1,
        blockBytes: 8192,
        commitMs: 1,
        signal: abort.signal,
      });
    } catch (error) {
      expect(error).toMatchObject({ code: "E_INTERRUPTED", exit: 130 });
      if (readFileSync(join(trunkDir, "trunk.journal")).toString().split("\n").length > 3) return;
    } finally {
      clearInterval(timer);
    }
    await rm(trunkDir, { recursive: true, force: true });
    if (existsSync(older)) await cp(older, trunkDir, { recursive: true });
  }
  throw new Error("packing always finished before it could be stopped");
}

describe("an interrupted pack", () => {
  const large = { config: { vocab_size: 400_000 } }; // 51 MB of lm_head

  it("continues and gives the identical trunk", async () => {
    const { root, modelDir, trunkDir } = await madeCheckpoint(large);
    const options = { modelDir, blockBytes: 8192, threads: 2 };
    await pack({ ...options, trunkDir: join(root, "straight") });
    await interrupted(modelDir, trunkDir);
    const result = await pack({ ...options, trunkDir, check: true });
    expect(result.resumed_blocks).toBeGreaterThan(0);
    expect(result.resumed_blocks).toBeLessThan(result.blocks);
    expect(await trunkDigest(trunkDir)).toEqual(await trunkDigest(join(root, "straight")));
  });

  it("is not continued on a source that changed, which is named", async () => {
    const { modelDir, trunkDir } = await madeCheckpoint(large);
    await interrupted(modelDir, trunkDir);
    const shard = join(modelDir, "model-00002-of-000003.safetensors");
    const { mtime } = await stat(shard);
    const refused = async (words: RegExp) => {
      const run = pack({ modelDir, trunkDir, blockBytes: 8192 });
      await expect(run).rejects.toMatchObject({
        code: "E_DATA",
        exit: 3,
        message: expect.stringMatching(words),
      });
    };
    await utimes(shard, mtime, new Date(mtime.getTime() + 5000));
    await refused(/model-00002-of-000003.safetensors was written to/);
    await utimes(shard, mtime, mtime);

    const config = join(modelDir, "config.json");
    const text = await readFile(config);
    await writeFile(config, `${text} `);
    await refused(/config.json is another one/);
    await writeFile(config, text);

    await copyFile(shard, `${shard}.kept`);
    const { size } = await stat(shard);
    await addToHeader(shard);
    await refused(new RegExp(`model-00002-of-000003.safetensors had ${size} bytes and has ${size + 8}`));
    await rename(`${shard}.kept`, shard);
  });

  it("is not continued, nor taken for finished, when a shard of a known commit was repaired in between", async () => {
    const { root, modelDir, trunkDir } = await madeCheckpoint(large);
    await nameCommit(modelDir);
    const options = { modelDir, blockBytes: 8192 };
    await pack({ ...options, trunkDir: join(root, "straight") });
    const expected = await trunkDigest(join(root, "straight"));
    const shard = join(modelDir, "model-00001-of-000003.safetensors");
    const right = await readFile(shard);
    const firstWeight = 8 + Number(right.readBigUInt64LE(0));
    const put = async (byte: number) => {
      const handle = await open(shard, "r+");
      await handle.write(Uint8Array.of(byte), 0, 1, firstWeight);
      await handle.close();
    };

    await put(right[firstWeight]! ^ 1);
    await interrupted(modelDir, trunkDir);
    await put(right[firstWeight]!);
    await expect(pack({ ...options, trunkDir })).rejects.toMatchObject({
      code: "E_DATA",
      message: expect.stringMatching(/model-00001-of-000003.safetensors was written to/),
    });

    await rm(trunkDir, { recursive: true });
    await put(right[firstWeight]! ^ 1);
    await pack({ ...options, trunkDir });
    expect(await trunkDigest(trunkDir)).not.toEqual(expected);
    await put(right[firstWeight]!);
    await pack({ ...options, trunkDir, check: true });
    expect(await trunkDigest(trunkDir)).toEqual(expected);
  });

  it("fails when the checkpoint is written to while it is packed", async () => {
    const { modelDir, trunkDir } = await madeCheckpoint(large);
    const shard = join(modelDir, "model-00001-of-000003.safetensors");
    let touched = false;
    const run = pack({
      ...{ modelDir, trunkDir, blockBytes: 8192 },
      onEvent: (event) => {
        if (touched || event.type !== "progress" || !event.phase.startsWith("packing")) return;
        touched = true;
        utimesSync(shard, new Date(1e12), new Date(1e12));
      },
    });
    await expect(run).rejects.toMatchObject({
      code: "E_DATA",
      message: expect.stringMatching(/written to while it was packed: .*00001-of-000003/),
    });
    await expect(openTrunk(trunkDir)).rejects.toMatchObject({ code: "E_DATA" });
  });

  it("is not continued with another codec", async () => {
    const { modelDir, trunkDir } = await madeCheckpoint(large);
    await interrupted(modelDir, trunkDir, "bf16");
    await expect(pack({ modelDir, trunkDir, codec: "none", blockBytes: 8192 })).rejects.toMatchObject({
      code: "E_USAGE",
      message: expect.stringMatching(/begun with other options \(bf16/),
    });
  });

  it("leaves the older trunk usable until the new one is complete (T-25)", async () => {
    const { root, modelDir, trunkDir } = await madeCheckpoint(large);
    await pack({ modelDir, trunkDir, codec: "none", blockBytes: 8192 });
    const old = await trunkDigest(trunkDir);
    await interrupted(modelDir, trunkDir, "bf16");
    expect(await trunkDigest(trunkDir)).toEqual(old);
    expect((await openTrunk(trunkDir)).manifest.codec).toBe("none");
    await pack({ modelDir, trunkDir, codec: "bf16", blockBytes: 8192 });
    await pack({ modelDir, trunkDir: join(root, "straight"), codec: "bf16", blockBytes: 8192 });
    expect(await trunkDigest(trunkDir)).toEqual(await trunkDigest(join(root, "straight")));
  });

  it("survives a journal that is torn anywhere, and a part file that is lost or cut", async () => {
    const { root, modelDir, trunkDir } = await madeCheckpoint(large);
    const options = { modelDir, blockBytes: 8192, threads: 2 };
    await pack({ ...options, trunkDir: join(root, "straight") });
    const expected = await trunkDigest(join(root, "straight"));
    await interrupted(modelDir, trunkDir);
    const journal = join(trunkDir, "trunk.journal");
    const part = join(trunkDir, "trunk.part");
    const kept = { journal: await readFile(journal), part: await readFile(part) };
    const restore = async () => {
      await writeFile(journal, kept.journal);
      await writeFile(part, kept.part);
    };
    const lines = kept.journal.toString().split("\n");
    expect(lines.length).toBeGreaterThan(3);
    for (const [name, damage] of Object.entries({
      "torn in the last line": () => truncate(journal, kept.journal.length - 7),
      "torn in the first line": () => truncate(journal, 40),
      empty: () => truncate(journal, 0),
      "a bit flipped": () => writeFile(journal, Buffer.from(kept.journal).fill("x", 3000, 3001)),
      "part lost": () => rename(part, `${part}.lost`),
      "part cut": () => truncate(part, 5000),
      "part with stale bytes behind the journal": async () => {
        const { size } = await stat(part);
        const handle = await open(part, "r+");
        await handle.write(Buffer.alloc(1 << 20, 0xaa), 0, 1 << 20, size - (1 << 20));
        await handle.close();
      },
    })) {
      await restore();
      await damage();
      await pack({ ...options, trunkDir, check: true });
      expect(await trunkDigest(trunkDir), name).toEqual(expected);
      for (const file of Object.keys(expected))
        await rename(join(trunkDir, file), join(root, `used-${file}`));
    }
  });

  it("survives a stop between any two steps of publishing", async () => {
    const { root, modelDir, trunkDir } = await madeCheckpoint(large);
    const options = { modelDir, blockBytes: 8192, threads: 2 };
    await pack({ ...options, trunkDir: join(root, "straight") });
    const expected = await trunkDigest(join(root, "straight"));
    const data = Object.keys(expected).find((name) => name.endsWith(".bin"))!;

    // A journal of all blocks: packed, then stopped by a failing publication (its directory entry is taken).
    await mkdir(join(trunkDir, data), { recursive: true });
    await expect(pack({ ...options, trunkDir })).rejects.toMatchObject({ exit: expect.any(Number) });
    const journal = await readFile(join(trunkDir, "trunk.journal"));
    const part = await readFile(join(trunkDir, "trunk.part"));
    await rename(join(trunkDir, data), join(root, "in the way"));

    const { resumed_blocks, blocks } = await pack({ ...options, trunkDir, check: true });
    expect(resumed_blocks).toBe(blocks);
    expect(await trunkDigest(trunkDir)).toEqual(expected);

    // Renamed, but trunk.json not yet in place; it was being written.
    for (const name of ["trunk.json.4711.tmp", "trunk.json.0123456789ab.tmp"])
      await writeFile(join(trunkDir, name), "{");
    await writeFile(join(trunkDir, "trunk.journal"), journal);
    await rename(join(trunkDir, "trunk.json"), join(root, "trunk.json"));
    await pack({ ...options, trunkDir, check: true });
    expect(await trunkDigest(trunkDir)).toEqual(expected);

    // trunk.json in place, the older data file and the journal not yet removed; with a part as well.
    await writeFile(join(trunkDir, "trunk-0123456789abcdef.bin"), "older");
    await writeFile(join(trunkDir, "trunk.journal"), journal);
    await writeFile(join(trunkDir, "trunk.part"), part);
    await pack({ ...options, trunkDir, check: true });
    expect(await trunkDigest(trunkDir)).toEqual(expected);
    expect((await readdir(trunkDir)).filter((name) => /part|journal|tmp/.test(name))).toEqual([]);
  });
});

/** The checkpoint as fetch leaves it: with the manifest of a commit. */
async function nameCommit(modelDir: string): Promise<void> {
  const names = (await readdir(modelDir)).sort();
  const files = await Promise.all(
    names.map(async (path) => ({
      path,
      size: (await stat(join(modelDir, path))).size,
      sha256: createHash("sha256")
        .update(await readFile(join(modelDir, path)))
        .digest("hex"),
    })),
  );
  await mkdir(join(modelDir, ".cache/k3"), { recursive: true });
  await writeSnapshot(modelDir, {
    format: "k3-snapshot",
    version: 1,
    endpoint: "https://example.org",
    repo: "ns/model",
    revision: "0123456789".repeat(4),
    files,
    selected: null,
  });
}

/** Makes a shard's header eight bytes longer without changing what it says. */
async function addToHeader(path: string): Promise<void> {
  const bytes = await readFile(path);
  const length = Number(bytes.readBigUInt64LE(0));
  bytes.writeBigUInt64LE(BigInt(length + 8), 0);
  const padded = Buffer.concat([
    bytes.subarray(0, 8 + length),
    Buffer.alloc(8, " "),
    bytes.subarray(8 + length),
  ]);
  await writeFile(path, padded);
}
