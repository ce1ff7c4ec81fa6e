import { mkdir, open, readFile, rename, rm, symlink, truncate, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { openCheckpoint } from "../src/open.ts";
import { checkStructure } from "../src/structure.ts";
import type { StructureFault } from "../src/types.ts";
import {
  CONFIG,
  encodeShard,
  safetensors,
  shardName,
  TEXT_CONFIG,
  type TinyTensor,
  temporaryDirectory,
  tensor,
  tinyShards,
  writeCheckpoint,
} from "./tiny.ts";

const LAYERS = "language_model.model.layers.";
const faultsOf = async (dir: string) => (await checkStructure(dir)).faults;
const short = (faults: StructureFault[]) => faults.map(({ kind, path, tensor }) => [kind, path, tensor]);

/** The tiny checkpoint with one shard's tensors changed. */
function changed(shard: number, change: (tensors: TinyTensor[]) => TinyTensor[]): Promise<string> {
  return writeCheckpoint(
    CONFIG,
    tinyShards().map((tensors, i) => (i === shard - 1 ? change(tensors) : tensors)),
  );
}

const replaced = (shard: number, suffix: string, dtype: string, shape: number[]) =>
  changed(shard, (tensors) =>
    tensors.map((t) => (t.name.endsWith(suffix) ? tensor(t.name, dtype, shape) : t)),
  );

describe("faults of the structure, all at once", () => {
  test("a tensor of a wrong shape", async () => {
    expect(await faultsOf(await replaced(1, "q_proj.weight", "BF16", [8, 9]))).toEqual([
      {
        path: shardName(1),
        kind: "wrong-shape",
        tensor: `${LAYERS}0.self_attn.q_proj.weight`,
        expected: "[8, 8]",
        found: "[8, 9]",
      },
    ]);
  });
  test("a transposed expert", async () => {
    expect(short(await faultsOf(await replaced(2, "experts.1.w2.weight_packed", "U8", [64, 16])))).toEqual([
      ["wrong-shape", shardName(2), `${LAYERS}1.block_sparse_moe.experts.1.w2.weight_packed`],
    ]);
  });
  test.each(["F16", "I64"])("a dense tensor in %s", async (dtype) => {
    expect(await faultsOf(await replaced(1, "dt_bias", dtype, [8]))).toEqual([
      {
        path: shardName(1),
        kind: "wrong-dtype",
        tensor: `${LAYERS}0.self_attn.dt_bias`,
        expected: "BF16 or F32",
        found: dtype,
      },
    ]);
  });
  test("a packed expert in BF16", async () => {
    expect(short(await faultsOf(await replaced(2, "experts.0.w1.weight_scale", "BF16", [64, 1])))).toEqual([
      ["wrong-dtype", shardName(2), `${LAYERS}1.block_sparse_moe.experts.0.w1.weight_scale`],
    ]);
  });
  test("A_log shorter than the heads", async () => {
    expect(short(await faultsOf(await replaced(1, "A_log", "F32", [1])))).toEqual([
      ["wrong-shape", shardName(1), `${LAYERS}0.self_attn.A_log`],
    ]);
  });
  test("an A_log whose padding is not zero", async () => {
    const dir = await changed(2, (tensors) => {
      tensors.find(({ name }) => name.endsWith("A_log"))!.data.writeFloatLE(0.5, 3 * 4);
      return tensors;
    });
    expect(await faultsOf(dir)).toEqual([
      expect.objectContaining({
        kind: "a-log-tail",
        path: shardName(2),
        tensor: `${LAYERS}1.self_attn.A_log`,
        found: "another value at entry 3",
      }),
    ]);
  });
  test("a surplus tensor, and one that looks like an expert too many", async () => {
    const dir = await changed(3, (tensors) => [
      ...tensors,
      tensor(`${LAYERS}2.self_attn.q_proj.bias`, "BF16", [8]),
      tensor(`${LAYERS}2.block_sparse_moe.experts.3.w1.weight_packed`, "U8", [64, 16]),
      tensor(`${LAYERS}0.block_sparse_moe.experts.0.w1.weight_packed`, "U8", [64, 16]),
      tensor(`${LAYERS}2.block_sparse_moe.experts.01.w1.weight_packed`, "U8", [64, 16]),
      tensor(`${LAYERS}4.input_layernorm.weight`, "BF16", [8]),
    ]);
    expect(new Set(short(await faultsOf(dir)).map(([kind]) => kind))).toEqual(new Set(["extra"]));
    expect(await faultsOf(dir)).toHaveLength(5);
  });
  test.each(["self_attn.A_log", "block_sparse_moe.experts.2.w3.weight_scale"])(
    "%s missing",
    async (suffix) => {
      const dir = await changed(2, (tensors) => tensors.filter(({ name }) => !name.endsWith(suffix)));
      expect(short(await faultsOf(dir))).toEqual([["missing", shardName(2), `${LAYERS}1.${suffix}`]]);
    },
  );
  test("a whole file missing: its layer, under the file's name", async () => {
    const dir = await writeCheckpoint();
    await unlink(join(dir, shardName(3)));
    expect(await faultsOf(dir)).toEqual([
      expect.objectContaining({
        kind: "missing",
        path: shardName(3),
        tensor: `${LAYERS}2.*`,
        found: "none of them",
      }),
    ]);
  });
  test("many experts of a layer missing: one fault with the count", async () => {
    const dir = await changed(2, (tensors) =>
      tensors.filter(({ name }) => !/experts\.[01]\.w[12]|experts\.2/.test(name)),
    );
    expect(await faultsOf(dir)).toEqual([
      expect.objectContaining({ kind: "missing", found: expect.stringMatching(/^14 of them/) }),
    ]);
  });
  test.each(["self_attn.o_proj.weight", "block_sparse_moe.experts.2.w3.weight_scale"])(
    "%s in two files: both are named",
    async (suffix) => {
      const name = `${LAYERS}1.${suffix}`;
      const dir = await changed(5, (tensors) => [...tensors, tinyShards()[1]!.find((t) => t.name === name)!]);
      expect(await faultsOf(dir)).toEqual([
        expect.objectContaining({
          kind: "duplicate",
          tensor: name,
          found: `it in ${shardName(2)} and in ${shardName(5)}`,
        }),
      ]);
    },
  );
  test("packed and plain experts mixed", async () => {
    const dir = await changed(4, (tensors) =>
      tensors.map((t) =>
        t.name.endsWith("experts.0.w1.weight_packed")
          ? tensor(t.name.replace("_packed", ""), "BF16", [64, 32])
          : t,
      ),
    );
    expect(short(await faultsOf(dir))).toEqual([
      ["mixed-experts", shardName(4), `${LAYERS}3.block_sparse_moe.experts.0.w1.weight`],
      ["missing", shardName(4), `${LAYERS}3.block_sparse_moe.experts.0.w1.weight_packed`],
    ]);
  });
  test("packed experts with widths that are no multiple of 32, or without quantization_config: the config is refused", async () => {
    const wide = await writeCheckpoint({ text_config: { ...TEXT_CONFIG, moe_intermediate_size: 48 } });
    await expect(openCheckpoint(wide)).rejects.toMatchObject({
      code: "E_CONFIG",
      exit: 2,
      message: expect.stringContaining("moe_intermediate_size to be a multiple of 32"),
    });
    const { quantization_config: _, ...plain } = TEXT_CONFIG;
    expect(await faultsOf(await writeCheckpoint({ text_config: plain }))).toEqual([
      expect.objectContaining({ kind: "config", path: "config.json" }),
    ]);
  });
});

describe("files that are no weights are called by their name", () => {
  const LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 16990911504\n";
  test.each<[string, string | Buffer, string, RegExp]>([
    ["an LFS pointer", LFS, "lfs-pointer", /Git LFS pointer/],
    ["an HTML page", "<!DOCTYPE html><html><body>Too many requests", "html", /HTML/],
    ["an HTML page after blank lines", "\n \n<html lang=en>", "html", /HTML/],
    ["an empty file", "", "empty-file", /0 bytes/],
    ["seven bytes", "1234567", "header-length", /7 bytes/],
    ["a header length of 0", Buffer.alloc(64), "header-length", /length of 0/],
    ["a header length of 2^64 - 1", Buffer.alloc(64, 0xff), "header-length", /18446744073709551615/],
    ["a header longer than the file", safetensors("{}").subarray(0, 9), "header-length", /length of 2/],
    [
      "JSON without a length",
      '{"error":"Access to model is restricted"}',
      "header-length",
      /length of \d{15}/,
    ],
  ])("%s", async (_, content, kind, found) => {
    const dir = await writeCheckpoint();
    await writeFile(join(dir, shardName(6)), content);
    expect(await faultsOf(dir)).toEqual([
      expect.objectContaining({ path: shardName(6), kind, found: expect.stringMatching(found) }),
    ]);
  });
  test("and that such a file lacks its tensors is not reported once more", async () => {
    const dir = await writeCheckpoint();
    await writeFile(join(dir, shardName(3)), LFS);
    expect(short(await faultsOf(dir))).toEqual([["lfs-pointer", shardName(3), undefined]]);
    await expect(openCheckpoint(dir, { layers: 3 })).rejects.toMatchObject({ code: "E_DATA" });
    await expect(openCheckpoint(dir, { layers: 2 })).resolves.toMatchObject({ layers: 2 });
  });
  test("a header length above 100 MB, in a file that is large enough: nothing is allocated for it", async () => {
    const dir = await writeCheckpoint();
    const handle = await open(join(dir, shardName(6)), "w");
    await handle.write(Buffer.from([1, 0xe1, 0xf5, 5, 0, 0, 0, 0])); // 100,000,001
    await handle.truncate(200_000_000);
    await handle.close();
    expect(await faultsOf(dir)).toEqual([
      expect.objectContaining({ kind: "header-length", found: "a length of 100000001" }),
    ]);
  });
  test("a hole of the right size", async () => {
    const dir = await writeCheckpoint();
    await writeFile(join(dir, shardName(6)), "");
    await truncate(join(dir, shardName(6)), 1 << 20);
    expect(await faultsOf(dir)).toEqual([expect.objectContaining({ path: shardName(6), kind: "hole" })]);
  });
  test("a symbolic link to nowhere, a directory; but a link to a file is as good as the file", async () => {
    const dir = await writeCheckpoint();
    await rm(join(dir, shardName(6)));
    await symlink("/nowhere/at/all", join(dir, shardName(6)));
    await rm(join(dir, shardName(7)));
    await mkdir(join(dir, shardName(7)));
    await rename(join(dir, shardName(5)), join(dir, "blob"));
    await symlink("blob", join(dir, shardName(5)));
    expect((await faultsOf(dir)).map(({ kind, path, found }) => [kind, path, found])).toEqual([
      ["unreadable", shardName(6), "a symbolic link to nowhere"],
      ["unreadable", shardName(7), "something that is not a regular file"],
    ]);
  });
  test("no weights at all", async () => {
    const dir = await temporaryDirectory();
    await writeFile(join(dir, "config.json"), JSON.stringify(CONFIG));
    expect(await faultsOf(dir)).toEqual([expect.objectContaining({ kind: "no-shards" })]);
  });
  test("a truncated file and one with bytes too many", async () => {
    const dir = await writeCheckpoint();
    const one = await readFile(join(dir, shardName(1)));
    await truncate(join(dir, shardName(1)), one.length - 1);
    await writeFile(
      join(dir, shardName(2)),
      Buffer.concat([await readFile(join(dir, shardName(2))), Buffer.from("x")]),
    );
    expect(short(await faultsOf(dir)).map(([kind, path]) => [kind, path])).toEqual([
      ["truncated", shardName(1)],
      ["trailing-bytes", shardName(2)],
    ]);
  });
});

test("a surplus file does not hide behind names of the others", async () => {
  const dir = await writeCheckpoint();
  await writeFile(join(dir, "extra.safetensors"), encodeShard(tinyShards()[1]!));
  const faults = await faultsOf(dir);
  expect(faults.length).toBe(tinyShards()[1]!.length);
  expect(new Set(faults.map(({ kind }) => kind))).toEqual(new Set(["duplicate"]));
});
