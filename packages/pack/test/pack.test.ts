import { mkdir, open, readdir, readFile, readlink, rename, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { openCheckpoint } from "@k3/checkpoint";
import { lockFile, type ProgressEvent, type StageEvent } from "@k3/stage";
import { makeMiniature } from "@k3/testkit";
import { blockSegments, openTrunk, tensorRows, trunkAddon } from "@k3/trunk";
import { describe, expect, it, vi } from "vitest";
import { pack } from "../src/index.ts";
import { madeCheckpoint, temporaryDirectory, trunkDigest, writeCheckpoint } from "./fixture.ts";

const small = { blockBytes: 16_384, threads: 2 } as const;

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

  it("makes a trunk directory that survives a power loss: its parents are synced", async () => {
    const { modelDir, trunkDir } = await madeCheckpoint();
    const synced = new Set<string>();
    const probe = await open("/dev/null");
    const handles: { sync(): Promise<void> } = Object.getPrototypeOf(probe);
    await probe.close();
    const sync = vi.spyOn(handles, "sync").mockImplementation(async function (this: typeof probe) {
      synced.add(await readlink(`/proc/self/fd/${this.fd}`));
    });
    try {
      await pack({ modelDir, trunkDir: join(trunkDir, "new", "deep"), ...small });
    } finally {
      sync.mockRestore();
    }
    for (const made of [dirname(trunkDir), trunkDir, join(trunkDir, "new")]) expect(synced).toContain(made);
  });

  it("packs layers whose tensors lie in several shards, mixed dtypes, at any offset (T-28)", async () => {
    for (const shards of [1, 2, 5]) {
      const { modelDir, trunkDir } = await madeCheckpoint({ shards });
      await pack({ modelDir, trunkDir, ...small });
      await expectEqual(modelDir, trunkDir);
    }
  });

  it("packs the miniature", async () => {
    const root = await temporaryDirectory();
    const [modelDir, trunkDir] = [join(root, "model"), join(root, "trunk")];
    await makeMiniature(modelDir);
    const { source_bytes, stored_bytes } = await pack({ modelDir, trunkDir, check: true });
    expect(stored_bytes).toBeLessThan(source_bytes);
    await expectEqual(modelDir, trunkDir);
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

  it("notices in a check that the trunk or the checkpoint was damaged, and says what mends it", async () => {
    const { modelDir, trunkDir } = await madeCheckpoint();
    await pack({ modelDir, trunkDir, ...small });
    const right = await trunkDigest(trunkDir);
    const { dataPath, table } = await openTrunk(trunkDir);
    const data = await readFile(dataPath);
    data[table.offset[2]! + 70]! ^= 0x10;
    await writeFile(dataPath, data);
    await expect(pack({ modelDir, trunkDir, check: true, ...small })).rejects.toMatchObject({
      code: "E_DATA",
      exit: 3,
      message: expect.stringMatching(/block 2 does not match its checksum/),
      hint: expect.stringContaining(`remove ${join(trunkDir, "trunk.json")} and pack again`),
    });
    await rm(join(trunkDir, "trunk.json"));
    await pack({ modelDir, trunkDir, check: true, ...small });
    expect(await trunkDigest(trunkDir)).toEqual(right);
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
