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
import { openCheckpoint } from "@k3/checkpoint";
import { encodeRecord, lockFile, type ProgressEvent, type StageEvent } from "@k3/stage";
import { blockSegments, openTrunk, tensorRows, trunkAddon } from "@k3/trunk";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { pack } from "../src/index.ts";
import { PackJournal } from "../src/journal.ts";
import { largestDataBytes, planPack } from "../src/plan.ts";
import { temporaryDirectory, trunkDigest, writeCheckpoint } from "./fixture.ts";

const small = { blockBytes: 16_384, threads: 2 } as const;

async function madeCheckpoint(options = {}) {
  const root = await temporaryDirectory();
  const modelDir = join(root, "model");
  await writeCheckpoint(modelDir, options);
  return { root, modelDir, trunkDir: join(root, "trunk") };
}

/** Decodes a trunk with nothing of pack and compares every tensor with the checkpoint. */
async function expectEqual(modelDir: string, trunkDir: string): Promise<void> {
  const checkpoint = await openCheckpoint(modelDir);
  const { table, manifest, dataPath } = await openTrunk(trunkDir);
  expect(manifest.tensors.map((t) => t.name)).toEqual(checkpoint.dense.map((t) => t.name));
  const data = await readFile(dataPath);
  const shards = await Promise.all(checkpoint.shards.map(({ file }) => readFile(join(modelDir, file))));
  for (let b = 0; b < table.blocks; b++) {
    const stored = data.subarray(table.offset[b]!, table.offset[b]! + table.storedBytes[b]!);
    const raw = table.codec[b] === 0 ? stored : trunkAddon().decode(stored, table.rawBytes[b]!)!;
    for (const { tensor, firstRow, byteOffset, bytes } of blockSegments(table, b)) {
      const { shard, offset } = checkpoint.dense[tensor]!;
      const from = offset + firstRow * tensorRows(manifest.tensors[tensor]!).rowBytes;
      const same = Buffer.compare(
        raw.subarray(byteOffset, byteOffset + bytes),
        shards[shard]!.subarray(from, from + bytes),
      );
      expect(same, `${manifest.tensors[tensor]!.name} row ${firstRow}`).toBe(0);
    }
  }
}

describe("pack", () => {
  it.each(["bf16", "none"] as const)(
    "with codec %s keeps every weight, in forward order, lm_head last",
    async (codec) => {
      const { modelDir, trunkDir } = await madeCheckpoint();
      const result = await pack({ modelDir, trunkDir, codec, check: true, ...small });
      expect(result).toMatchObject({ trunk_dir: trunkDir, codec, resumed_blocks: 0, checked: true });
      await expectEqual(modelDir, trunkDir);
      const { manifest } = await openTrunk(trunkDir);
      expect(manifest.tensors.at(-1)!.name).toBe("language_model.lm_head.weight");
      expect(manifest.tensors.some((t) => /embed_tokens|experts\.\d/.test(t.name))).toBe(false);
      expect(result.stored_bytes / result.source_bytes).toBeLessThan(codec === "bf16" ? 0.75 : 1.01);
      expect((await readdir(trunkDir)).filter((name) => /part|journal/.test(name))).toEqual([]);
    },
  );

  it("packs layers whose tensors lie in several shards, mixed dtypes, at any offset (T-28)", async () => {
    for (const shards of [1, 2, 5]) {
      const { modelDir, trunkDir } = await madeCheckpoint({ shards });
      await pack({ modelDir, trunkDir, ...small });
      await expectEqual(modelDir, trunkDir);
    }
  });

  it("gives the same bytes for any number of threads, with and without the page cache", async () => {
    const { root, modelDir } = await madeCheckpoint();
    const digests = [];
    for (const [i, [threads, direct]] of (
      [
        [1, true],
        [2, false],
        [7, true],
      ] as const
    ).entries()) {
      const trunkDir = join(root, `trunk-${i}`);
      await pack({ modelDir, trunkDir, threads, direct, blockBytes: 8192 });
      digests.push(await trunkDigest(trunkDir));
    }
    expect(digests[1]).toEqual(digests[0]);
    expect(digests[2]).toEqual(digests[0]);
  });

  it("packs a tensor beyond 2 GiB, and leaves holes as holes (T-27)", async () => {
    // lm_head is 9,000,000 x 128 x 2 = 2.3e9 bytes, all but its ends a hole.
    const config = { hidden_size: 128, vocab_size: 9_000_000 };
    const { modelDir, trunkDir } = await madeCheckpoint({ config, sparse: /lm_head|embed/ });
    for (const codec of ["none", "bf16"] as const) {
      const result = await pack({ modelDir, trunkDir, codec, check: true });
      const { dataPath, table, manifest } = await openTrunk(trunkDir);
      const { size, blocks } = await stat(dataPath);
      expect(result.source_bytes).toBeGreaterThan(2 ** 31);
      expect(size).toBeGreaterThan(codec === "none" ? 2 ** 31 : 2 ** 30);
      expect(blocks * 512).toBeLessThan(32e6);
      // The last row, beyond 2 GiB of its tensor, is the checkpoint's.
      const head = (await openCheckpoint(modelDir)).dense.at(-1)!;
      const shard = await open(join(modelDir, (await openCheckpoint(modelDir)).shards[head.shard]!.file));
      const expected = Buffer.alloc(256);
      await shard.read(expected, 0, 256, head.offset + head.bytes - 256);
      await shard.close();
      const last = table.blocks - 1;
      const data = await open(dataPath);
      const stored = Buffer.alloc(table.storedBytes[last]!);
      await data.read(stored, 0, stored.length, table.offset[last]!);
      await data.close();
      const raw = table.codec[last] === 0 ? stored : trunkAddon().decode(stored, table.rawBytes[last]!)!;
      expect(manifest.tensors.at(-1)!.shape).toEqual([9_000_000, 128]);
      expect(Buffer.compare(raw.subarray(raw.length - 256), expected)).toBe(0);
    }
  });

  it("does nothing when the same trunk is there, and packs anew when the weights changed", async () => {
    const { modelDir, trunkDir } = await madeCheckpoint();
    const first = await pack({ modelDir, trunkDir, ...small });
    const before = await trunkDigest(trunkDir);
    const again = await pack({ modelDir, trunkDir, ...small });
    expect(again.resumed_blocks).toBe(first.blocks);
    expect(await trunkDigest(trunkDir)).toEqual(before);
    await writeCheckpoint(modelDir, { seed: 2 }); // same names and sizes, other weights
    const other = await pack({ modelDir, trunkDir, check: true, ...small });
    expect(other.resumed_blocks).toBe(0);
    const after = await trunkDigest(trunkDir);
    expect(Object.keys(after).filter((name) => name.endsWith(".bin"))).toHaveLength(1);
    expect(after).not.toEqual(before);
    await expectEqual(modelDir, trunkDir);
  });

  it("notices in a check that the trunk or the checkpoint was damaged", async () => {
    const { modelDir, trunkDir } = await madeCheckpoint();
    await pack({ modelDir, trunkDir, ...small });
    const { dataPath, table } = await openTrunk(trunkDir);
    const data = await readFile(dataPath);
    data[table.offset[2]! + 70]! ^= 0x10;
    await writeFile(dataPath, data);
    await expect(pack({ modelDir, trunkDir, check: true, ...small })).rejects.toMatchObject({
      code: "E_DATA",
      exit: 3,
      message: expect.stringMatching(/block 2 does not match its checksum/),
    });
  });

  it("says in a dry run what it would take, and writes nothing", async () => {
    const { root, modelDir, trunkDir } = await madeCheckpoint();
    const result = await pack({ modelDir, trunkDir, dryRun: true, ...small });
    expect(await readdir(root)).toEqual(["model"]);
    const real = await pack({ modelDir, trunkDir, ...small });
    expect(result.source_bytes).toBe(real.source_bytes);
    expect(Math.abs(result.stored_bytes / real.stored_bytes - 1)).toBeLessThan(0.05);
    expect(result.blocks).toBe(real.blocks);
    expect(result.dry_run!.read_bytes_per_second).toBeGreaterThan(0);
    expect(result.seconds).toBeGreaterThan(0);
    expect(result.dry_run!.fits).toBe(true);
  });

  it("refuses bad options, incomplete checkpoints, and a directory that is at work", async () => {
    const { modelDir, trunkDir } = await madeCheckpoint();
    for (const options of [{ threads: 0 }, { threads: 1.5 }, { codec: "zip" as "none" }, { blockBytes: 5 }]) {
      await expect(pack({ modelDir, trunkDir, ...options })).rejects.toMatchObject({
        code: "E_USAGE",
        exit: 2,
      });
    }
    await mkdir(trunkDir, { recursive: true });
    const lock = await lockFile(join(trunkDir, "trunk.lock"), "a test");
    await expect(pack({ modelDir, trunkDir, ...small })).rejects.toMatchObject({ code: "E_LOCKED", exit: 7 });
    await lock.release();
    const [shard] = (await readdir(modelDir)).filter((name) => name.endsWith(".safetensors"));
    await rename(join(modelDir, shard!), join(modelDir, "elsewhere"));
    await expect(pack({ modelDir, trunkDir, ...small })).rejects.toMatchObject({ code: "E_DATA", exit: 3 });
  });

  it("reports progress by layer, and ends at the total", async () => {
    const { modelDir, trunkDir } = await madeCheckpoint();
    const events: StageEvent[] = [];
    await pack({ modelDir, trunkDir, check: true, ...small, onEvent: (event) => events.push(event) });
    const progress = events.filter((e): e is ProgressEvent => e.type === "progress" && e.stage === "pack");
    for (const verb of ["packing", "checking"]) {
      const last = progress.filter((e) => e.phase.startsWith(verb)).at(-1)!;
      expect(last.phase).toBe(`${verb} the head`);
      expect(last.done).toBe(last.total);
      expect(last.unit).toBe("bytes");
    }
  });
});

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
  const large = { config: { vocab_size: 700_000 } }; // 90 MB of lm_head

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

  it("survives journals of arbitrary records", async () => {
    const { modelDir, trunkDir } = await madeCheckpoint();
    const journal = join(trunkDir, "trunk.journal");
    const plan = await planPack(await openCheckpoint(modelDir), "bf16", small.blockBytes);
    await mkdir(trunkDir, { recursive: true });
    await (await PackJournal.open(trunkDir, plan)).close();
    const start = await readFile(journal, "utf8");
    const record = fc.oneof(
      fc.jsonValue(),
      fc.record({
        type: fc.constant("blocks"),
        first: fc.integer({ min: -1, max: 3 }),
        results: fc.oneof(
          fc.string(),
          fc.uint8Array({ maxLength: 96 }).map((bytes) => Buffer.from(bytes).toString("base64")),
          fc
            .array(fc.constantFrom(0, 1, 64, 4096, 16_384, 2 ** 32 - 1), { minLength: 4, maxLength: 8 })
            .map((values) => Buffer.from(Uint32Array.from(values).buffer).toString("base64")),
        ),
      }),
    );
    await fc.assert(
      fc.asyncProperty(
        fc.array(record, { minLength: 1, maxLength: 3 }),
        fc.boolean(),
        async (records, begun) => {
          await writeFile(journal, (begun ? start : "") + records.map(encodeRecord).join(""));
          try {
            const opened = await PackJournal.open(trunkDir, plan);
            expect(opened.blocks).toBeLessThanOrEqual(plan.layout.blocks);
            expect(opened.offset).toBeLessThanOrEqual(largestDataBytes(plan));
            await opened.close();
          } catch (error) {
            expect(error).toMatchObject({ code: "E_DATA" });
          }
        },
      ),
      { numRuns: process.env["K3_NIGHTLY"] === "1" ? 2000 : 100 },
    );
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

    // Renamed, but trunk.json not yet in place.
    await writeFile(join(trunkDir, "trunk.journal"), journal);
    await rename(join(trunkDir, "trunk.json"), join(root, "trunk.json"));
    await pack({ ...options, trunkDir, check: true });
    expect(await trunkDigest(trunkDir)).toEqual(expected);

    // trunk.json in place, journal not yet removed; with a part as well.
    await writeFile(join(trunkDir, "trunk.journal"), journal);
    await writeFile(join(trunkDir, "trunk.part"), part);
    await pack({ ...options, trunkDir, check: true });
    expect(await trunkDigest(trunkDir)).toEqual(expected);
    expect((await readdir(trunkDir)).filter((name) => /part|journal/.test(name))).toEqual([]);
  });
});

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
  expect(createHash("sha256").update(padded).digest("hex")).toHaveLength(64);
  await writeFile(path, padded);
}
