import { execFileSync } from "node:child_process";
import { readFile, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { StageError } from "@k3/stage";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import {
  BlockJob,
  type BlockTable,
  blockSegments,
  decodeTable,
  type JobOptions,
  openTrunk,
  parseManifest,
  requireTrunkOf,
  tensorRows,
  trunkAddon,
  trunkId,
} from "../src/index.ts";
import { SOURCE, temporaryDirectory, writeSmallTrunk } from "./trunk-fixture.ts";

const long = process.env["K3_NIGHTLY"] === "1" ? 20 : 1;

/** A check of a trunk against its source, to the end. */
async function check(options: JobOptions, data: string, table: BlockTable): Promise<void> {
  const job = BlockJob.check(options, data, table);
  try {
    await job.finish();
  } finally {
    job.close();
  }
}

async function refusal(dir: string): Promise<StageError> {
  const error = await openTrunk(dir).then(
    () => undefined,
    (e: unknown) => e,
  );
  expect(error).toBeInstanceOf(StageError);
  return error as StageError;
}

describe("a trunk", () => {
  it.each(["bf16", "none"] as const)("holds, with codec %s, the bytes of its source", async (codec) => {
    const { dir, options, content } = await writeSmallTrunk(codec);
    const { table, manifest, dataPath } = await openTrunk(dir);
    const data = await readFile(dataPath);
    expect(data.length % 4096).toBe(0);
    expect(manifest.codec).toBe(codec);
    for (let b = 0; b < table.blocks; b++) {
      const stored = data.subarray(table.offset[b]!, table.offset[b]! + table.storedBytes[b]!);
      expect(table.offset[b]! % 4096).toBe(0);
      expect(crc32(stored)).toBe(table.crcStored[b]);
      const raw = table.codec[b] === 0 ? stored : trunkAddon().decode(stored, table.rawBytes[b]!)!;
      expect(crc32(raw)).toBe(table.crcRaw[b]);
      for (const { tensor, firstRow, byteOffset, bytes } of blockSegments(table, b)) {
        const { offset } = options.tensors[tensor]!;
        const from = offset + firstRow * tensorRows(options.tensors[tensor]!).rowBytes;
        expect(
          Buffer.compare(raw.subarray(byteOffset, byteOffset + bytes), content.subarray(from, from + bytes)),
        ).toBe(0);
      }
    }
    expect(new Set(table.codec)).toEqual(new Set(codec === "bf16" ? [0, 1] : [0]));
  });

  it("is the same bytes with any number of threads, in any directory", async () => {
    const files = [];
    for (const threads of [1, 2, 9]) {
      const { dir, manifest } = await writeSmallTrunk("bf16", threads);
      files.push([await readFile(join(dir, "trunk.json")), await readFile(join(dir, manifest.data.file))]);
    }
    expect(files[1]).toEqual(files[0]);
    expect(files[2]).toEqual(files[0]);
    expect(files[0]![0]!.toString()).not.toMatch(/\/tmp|k3-trunk-\w{6}/);
  });

  it("passes a check against its source, and no longer when either changes", async () => {
    const { options, dir, manifest, content, weights } = await writeSmallTrunk("bf16");
    const data = join(dir, manifest.data.file);
    const { table } = await openTrunk(dir);
    await check(options, data, table);

    const bytes = await readFile(data);
    bytes[table.offset[3]! + 40]! ^= 1;
    await writeFile(data, bytes);
    await expect(check(options, data, table)).rejects.toMatchObject({
      message: expect.stringContaining("block 3 does not match its checksum"),
      // Packing again alone would take the trunk for finished.
      hint: expect.stringContaining("remove trunk.json beside it and pack again"),
    });
    bytes[table.offset[3]! + 40]! ^= 1;
    await writeFile(data, bytes);

    content[options.tensors[6]!.offset + 5]! ^= 0x80;
    await writeFile(weights, content);
    await expect(check(options, data, table)).rejects.toThrow(/differs from the checkpoint/);
    await truncate(weights, content.length - 1);
    await expect(check(options, data, table)).rejects.toMatchObject({ code: "E_DATA" });
  });

  it("is told apart from one of another checkpoint", async () => {
    const { dir } = await writeSmallTrunk();
    const trunk = await openTrunk(dir);
    requireTrunkOf(trunk, SOURCE);
    requireTrunkOf(trunk, { ...SOURCE, revision: null });
    const shard = SOURCE.shards[0]!;
    for (const [source, words] of [
      [{ ...SOURCE, revision: "f".repeat(40) }, /commit was 0123.* and is ffff/],
      [{ ...SOURCE, configSha256: "d".repeat(64) }, /config.json/],
      [{ ...SOURCE, shards: [{ ...shard, size: 7 }] }, /00001.* had 1000000 bytes and has 7/],
      [{ ...SOURCE, shards: [{ ...shard, headerSha256: "b".repeat(64) }] }, /another header/],
      [{ ...SOURCE, shards: [] }, /is gone/],
      [{ ...SOURCE, shards: [shard, { ...shard, file: "more" }] }, /more is new/],
    ] as const) {
      expect(() => requireTrunkOf(trunk, { ...source, shards: [...source.shards] })).toThrow(words);
    }
  });
});

describe("opening", () => {
  it("refuses a directory without a trunk, and says what to do", async () => {
    const error = await refusal(await temporaryDirectory());
    expect(error).toMatchObject({ code: "E_DATA", exit: 3 });
    expect(error.hint).toMatch(/k3 pack/);
  });

  it("refuses what is no regular file, and does not wait for a writer of a pipe", async () => {
    const { dir, manifest } = await writeSmallTrunk();
    for (const name of [manifest.data.file, "trunk.json"]) {
      for (const make of ["mkdir", "mkfifo"]) {
        await rm(join(dir, name), { recursive: true });
        execFileSync(make, [join(dir, name)]);
        const error = await refusal(dir);
        expect(error.code).toBe("E_DATA");
        expect(error.message).toBe(`${join(dir, name)}: not a regular file`);
      }
    }
  });

  it("refuses a data file that is shorter, longer, missing, or has another table", async () => {
    const { dir, manifest } = await writeSmallTrunk();
    const data = join(dir, manifest.data.file);
    const bytes = await readFile(data);
    for (const size of [0, 1, 4096, bytes.length - 1, bytes.length + 1]) {
      const changed = Buffer.alloc(size);
      bytes.copy(changed);
      await writeFile(data, changed);
      expect((await refusal(dir)).message).toMatch(/bytes where/);
    }
    const damaged = Buffer.from(bytes);
    damaged[manifest.table.offset + 11]! ^= 4;
    await writeFile(data, damaged);
    expect((await refusal(dir)).message).toMatch(/checksum/);
  });

  it("refuses a manifest in which anything was changed", async () => {
    const { dir, manifest } = await writeSmallTrunk();
    const path = join(dir, "trunk.json");
    const variants: object[] = [
      { ...manifest, version: 2 },
      { ...manifest, id: "0".repeat(16) },
      { ...manifest, codec: "none" },
      { ...manifest, extra: 1 },
      { ...manifest, data: { ...manifest.data, file: "../../etc/passwd" } },
      { ...manifest, data: { ...manifest.data, bytes: 2 ** 52 } },
      { ...manifest, table: { ...manifest.table, blocks: 2 ** 31 } },
      { ...manifest, table: { ...manifest.table, bytes: 2 ** 40 } },
      { ...manifest, table: { ...manifest.table, offset: manifest.table.offset + 1 } },
      { ...manifest, tensors: [] },
      { ...manifest, tensors: manifest.tensors.map((t) => ({ ...t, shape: [...t.shape, 2] })) },
      { ...manifest, source: { ...manifest.source, revision: "main" } },
    ];
    for (const variant of variants) {
      await writeFile(path, JSON.stringify(variant));
      expect((await refusal(dir)).code).toBe("E_DATA");
    }
  });

  it("survives arbitrary manifests", async () => {
    const { manifest } = await writeSmallTrunk();
    const text = JSON.stringify(manifest);
    fc.assert(
      fc.property(
        fc.oneof(
          fc.json(),
          fc.string(),
          fc.tuple(fc.nat(text.length - 1), fc.string({ minLength: 1, maxLength: 3 })).map(([at, s]) => {
            return text.slice(0, at) + s + text.slice(at + s.length);
          }),
        ),
        (changed) => {
          try {
            parseManifest(changed, "trunk.json");
          } catch (error) {
            expect(error).toMatchObject({ code: "E_DATA" });
          }
        },
      ),
      { numRuns: 400 * long },
    );
  });

  it("survives arbitrary tables: what is accepted describes every row once", async () => {
    const { dir, manifest } = await writeSmallTrunk();
    const bytes = (await readFile(join(dir, manifest.data.file))).subarray(
      manifest.table.offset,
      manifest.table.offset + manifest.table.bytes,
    );
    let accepted = 0;
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.nat(bytes.length - 1), fc.oneof(fc.nat(255), fc.constantFrom(0, 1, 255))), {
          minLength: 1,
          maxLength: 6,
        }),
        (changes) => {
          const changed = Uint8Array.from(bytes);
          for (const [at, value] of changes) changed[at] = value;
          try {
            const table = decodeTable(manifest, changed, "data");
            accepted++;
            for (let b = 0; b < table.blocks; b++) {
              expect(table.offset[b]! + table.storedBytes[b]!).toBeLessThanOrEqual(manifest.table.offset);
            }
          } catch (error) {
            expect(error).toMatchObject({ code: "E_DATA" });
          }
        },
      ),
      { numRuns: 1000 * long },
    );
    // Checksums are not the table's to judge, so some changes pass; most do not.
    expect(accepted).toBeGreaterThan(0);
    expect(accepted).toBeLessThan(900 * long);
  });

  it("derives the id from everything else", async () => {
    const { manifest } = await writeSmallTrunk();
    expect(trunkId(manifest)).toBe(manifest.id);
    expect(trunkId({ ...manifest, storedBytes: manifest.storedBytes + 1 })).not.toBe(manifest.id);
    expect(manifest.data.file).toBe(`trunk-${manifest.id}.bin`);
  });
});
