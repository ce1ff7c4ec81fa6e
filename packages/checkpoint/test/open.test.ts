import { readFile, rename, stat, truncate, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { StageError, StageEvent } from "@k3/stage";
import { describe, expect, test } from "vitest";
import { openCheckpoint } from "../src/open.ts";
import { checkStructure } from "../src/structure.ts";
import {
  CONFIG,
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

describe("openCheckpoint", () => {
  test("locates every tensor: the bytes at its place are the tensor's", async () => {
    const dir = await writeCheckpoint();
    const checkpoint = await openCheckpoint(dir);
    const written = new Map(
      tinyShards()
        .flat()
        .map((t) => [t.name, t]),
    );
    for (const { name, shape, dtype, shard, offset, bytes, layer } of [
      ...checkpoint.dense,
      checkpoint.embed,
    ]) {
      const file = await readFile(join(dir, checkpoint.shards[shard]!.file));
      expect(file.subarray(offset, offset + bytes)).toEqual(written.get(name)!.data);
      expect({ shape, dtype }).toEqual({ shape: written.get(name)!.shape, dtype: written.get(name)!.dtype });
      expect(layer).toBe(name.includes(".layers.") ? Number(name.split(".")[3]) : null);
    }
    const { experts } = checkpoint;
    expect([experts.format, experts.parts, experts.layers, experts.experts]).toEqual([
      "mxfp4",
      6,
      [1, 2, 3],
      3,
    ]);
    expect(experts.partBytes).toEqual([1024, 64, 1024, 64, 1024, 64]);
    const parts = ["w1", "w2", "w3"].flatMap((w) => [`${w}.weight_packed`, `${w}.weight_scale`]);
    for (const [slot, offset] of experts.offsets.entries()) {
      const layer = experts.layers[Math.floor(slot / 18)];
      const name = `${LAYERS}${layer}.block_sparse_moe.experts.${Math.floor(slot / 6) % 3}.${parts[slot % 6]}`;
      const file = await readFile(join(dir, checkpoint.shards[experts.shards[slot]!]!.file));
      expect(file.subarray(offset, offset + experts.partBytes[slot % 6]!)).toEqual(written.get(name)!.data);
    }
    expect(checkpoint.dense.length + 1 + experts.offsets.length + checkpoint.opaque.tensors).toBe(
      written.size,
    );
    expect(checkpoint.opaque).toEqual({ tensors: 2, bytes: 32 + 96 });
    expect([checkpoint.layers, checkpoint.revision]).toEqual([4, null]);
  });

  test("gives the dense tensors in forward order", async () => {
    const names = (await openCheckpoint(await writeCheckpoint())).dense.map(({ name }) => name);
    const layer = (n: number) =>
      names
        .filter((name) => name.startsWith(`${LAYERS}${n}.`))
        .map((name) => name.split(".").slice(4).join("."));
    const small = /norm|res_proj|conv1d|A_log|dt_bias|correction_bias/;
    const matrices = (n: number) => layer(n).filter((name) => !small.test(name));
    for (const n of [0, 1, 2, 3]) {
      const [all, big] = [layer(n), matrices(n)];
      expect(all.slice(all.length - big.length)).toEqual(big);
    }
    const kda = ["q", "k", "v", "f_a", "f_b", "b", "g", "o"].map((x) => `self_attn.${x}_proj.weight`);
    const mla = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "g_proj", "o_proj"].map(
      (x) => `self_attn.${x}.weight`,
    );
    const moe = [
      ...["gate", "routed_expert_down_proj"],
      ...["gate", "up", "down"].map((x) => `shared_experts.${x}_proj`),
      "routed_expert_up_proj",
    ].map((x) => `block_sparse_moe.${x}.weight`);
    expect(matrices(0)).toEqual([...kda, ...["gate", "up", "down"].map((x) => `mlp.${x}_proj.weight`)]);
    expect(matrices(1)).toEqual([...kda, ...moe]);
    expect(matrices(2)).toEqual([...mla, ...moe]);
    expect(names.slice(-4).map((name) => name.replace("language_model.", ""))).toEqual([
      "model.output_attn_res_norm.weight",
      "model.output_attn_res_proj.weight",
      "model.norm.weight",
      "lm_head.weight",
    ]);
  });

  test("describes shards by size, data start and the hash of length and header", async () => {
    const dir = await writeCheckpoint();
    const { shards } = await openCheckpoint(dir);
    expect(shards.map(({ file }) => file)).toEqual([1, 2, 3, 4, 5, 6, 7].map((n) => shardName(n)));
    const bytes = await readFile(join(dir, shardName(5)));
    const { ino, mtimeNs } = await stat(join(dir, shardName(5)), { bigint: true });
    const { createHash } = await import("node:crypto");
    const dataStart = 8 + Number(bytes.readBigUInt64LE());
    expect(shards[4]).toEqual({
      file: shardName(5),
      size: bytes.length,
      inode: ino,
      mtimeNs,
      dataStart,
      headerSha256: createHash("sha256").update(bytes.subarray(0, dataStart)).digest("hex"),
    });
  });

  test("with layers, opens a partial download", async () => {
    const dir = await writeCheckpoint();
    for (const n of [3, 4, 6, 7]) await unlink(join(dir, shardName(n)));
    const partial = await openCheckpoint(dir, { layers: 2 });
    expect([
      partial.layers,
      partial.config.layers,
      partial.experts.layers,
      partial.experts.offsets.length,
    ]).toEqual([2, 4, [1], 18]);
    expect(partial.dense.filter(({ layer }) => layer !== null && layer >= 2)).toEqual([]);
    expect(partial.dense.at(-1)!.name).toBe("language_model.lm_head.weight");
    await expect(openCheckpoint(dir, { layers: 3 })).rejects.toMatchObject({ code: "E_DATA" });
    await expect(openCheckpoint(dir)).rejects.toMatchObject({ code: "E_DATA" });
  });

  test("with layers, a damaged file that holds none of them does not matter", async () => {
    const dir = await writeCheckpoint();
    await truncate(join(dir, shardName(4)), 3000);
    await writeFile(join(dir, shardName(3)), "<html>");
    expect((await openCheckpoint(dir, { layers: 2 })).dense.length).toBeGreaterThan(0);
    await truncate(join(dir, shardName(2)), 3000);
    await expect(openCheckpoint(dir, { layers: 2 })).rejects.toMatchObject({ code: "E_DATA" });
  });

  test.each([0, 5, 1.5, Number.NaN])("refuses %d layers", async (layers) => {
    await expect(openCheckpoint(await writeCheckpoint(), { layers })).rejects.toMatchObject({
      code: "E_USAGE",
      exit: 2,
    });
  });

  test("names what is missing in one error, twenty lines of it and the count", async () => {
    const dir = await writeCheckpoint(
      CONFIG,
      tinyShards().map((tensors) => tensors.filter(({ name }) => !name.includes("norm"))),
    );
    const error = (await openCheckpoint(dir).catch((e) => e)) as StageError;
    expect(error).toMatchObject({ code: "E_DATA", exit: 3, hint: `k3 verify ${dir} --level structure` });
    // Per layer 4 norms; per KDA layer 1, per MLA layer 2 more, per MoE layer 1 more; 2 at the model level.
    expect(error.details!["faults"]).toHaveLength(4 * 4 + 2 * 1 + 2 * 2 + 3 + 2);
    expect(error.message).toContain("27 faults in the checkpoint");
    expect(error.message.split("\n- ")).toHaveLength(1 + 20 + 1);
    expect(error.message).toContain("and 7 more");
  });

  test("a directory that is none, and one that is not there", async () => {
    const dir = await temporaryDirectory();
    await expect(openCheckpoint(join(dir, "nowhere"))).rejects.toMatchObject({ code: "E_DATA" });
    await expect(openCheckpoint(dir)).rejects.toMatchObject({ code: "E_DATA" });
  });

  test("stops when it is told to, and shows progress", async () => {
    const dir = await writeCheckpoint();
    const events: StageEvent[] = [];
    await openCheckpoint(dir, { onEvent: (event) => events.push(event) });
    expect(events.at(-1)).toMatchObject({ type: "progress", unit: "files", done: 7, total: 7 });
    await expect(openCheckpoint(dir, { signal: AbortSignal.abort() })).rejects.toMatchObject({ exit: 130 });
  });
});

describe("variants that are accepted", () => {
  test("all tensors in F32, or vectors in BF16", async () => {
    for (const dtype of ["F32", "BF16"]) {
      const dir = await writeCheckpoint(
        CONFIG,
        tinyShards().map((tensors) =>
          tensors.map((t) => (t.dtype === "U8" ? t : zeroTail(tensor(t.name, dtype, t.shape)))),
        ),
      );
      expect(await faultsOf(dir)).toEqual([]);
    }
  });

  test.each(["BF16", "F32"] as const)(
    "plain experts in %s, without a quantization_config and widths of 32",
    async (dtype) => {
      const { quantization_config: _, ...plain } = {
        ...TEXT_CONFIG,
        moe_intermediate_size: 5,
        num_shared_experts: 0,
      };
      const dir = await writeCheckpoint(
        { text_config: plain },
        tinyShards().map((tensors) =>
          tensors.flatMap((t) => {
            if (t.name.includes("shared_experts") || t.name.endsWith("scale")) return [];
            if (!t.name.endsWith("_packed")) return [t];
            return [tensor(t.name.replace("_packed", ""), dtype, t.name.includes("w2") ? [32, 5] : [5, 32])];
          }),
        ),
      );
      const { experts } = await openCheckpoint(dir);
      const width = dtype === "F32" ? 4 : 2;
      expect([experts.format, experts.parts, experts.partBytes]).toEqual([
        dtype,
        3,
        [160, 160, 160].map((n) => n * width),
      ]);
    },
  );

  test("A_log as long as the heads", async () => {
    expect(await faultsOf(await replaced(1, "A_log", "F32", [2]))).toEqual([]);
  });

  test("the tensors of a layer in two files, and files of any name", async () => {
    const shards = tinyShards();
    const dir = await writeCheckpoint(CONFIG, [
      shards[0]!.slice(0, 7),
      shards[0]!.slice(7),
      ...shards.slice(1),
    ]);
    await rename(join(dir, shardName(1)), join(dir, "some other name.safetensors"));
    expect(await faultsOf(dir)).toEqual([]);
  });

  test("a hidden file beside the shards", async () => {
    const dir = await writeCheckpoint();
    await writeFile(join(dir, "._model-00001-of-000007.safetensors"), "resource fork");
    expect(await faultsOf(dir)).toEqual([]);
  });

  test("a model without routed experts", async () => {
    const shards = tinyShards();
    const dir = await writeCheckpoint(
      {
        text_config: {
          ...TEXT_CONFIG,
          num_hidden_layers: 1,
          linear_attn_config: { ...TEXT_CONFIG.linear_attn_config, full_attn_layers: [], kda_layers: [1] },
        },
      },
      [shards[0]!, shards[4]!],
    );
    expect((await openCheckpoint(dir)).experts).toMatchObject({ layers: [], experts: 0 });
  });
});

function zeroTail(t: TinyTensor): TinyTensor {
  if (t.name.endsWith("A_log")) t.data.fill(0);
  return t;
}
