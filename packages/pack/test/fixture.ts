// Checkpoints for packing: every dense tensor that a small config implies, with seeded weights, spread over shards as a
// test asks. Routed experts are there too, as holes.
import { createHash } from "node:crypto";
import { mkdirSync } from "node:fs";
import { mkdtemp, open, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inventory, parseConfig } from "@k3/checkpoint";
import { onTestFinished } from "vitest";

export async function temporaryDirectory(parent = process.env["K3_TEST_DIR"] ?? tmpdir()): Promise<string> {
  const dir = await mkdtemp(join(parent, "k3-pack-"));
  onTestFinished(() => rm(dir, { recursive: true, force: true }));
  return dir;
}

export interface CheckpointOptions {
  seed?: number;
  /** Fields of text_config to replace. */
  config?: Record<string, unknown>;
  /** Number of shards; the tensors go round, so a layer's tensors lie in all of them and are not contiguous. */
  shards?: number;
  /** Names (parts of them) of tensors that are holes, with a few values at both ends. */
  sparse?: RegExp;
  /** Weights of sparse tensors: which values to write where. */
  deviation?: number;
}

const TEXT_CONFIG = {
  hidden_size: 64,
  num_hidden_layers: 4,
  vocab_size: 2048,
  rms_norm_eps: 1e-5,
  attn_res_block_size: 2,
  hidden_act: "situ",
  activation_situ_beta: 4.0,
  activation_situ_linear_beta: 25.0,
  first_k_dense_replace: 1,
  moe_layer_freq: 1,
  intermediate_size: 96,
  num_experts: 3,
  num_experts_per_token: 2,
  num_shared_experts: 2,
  moe_intermediate_size: 64,
  routed_expert_hidden_size: 32,
  latent_moe_use_norm: true,
  moe_router_activation_func: "sigmoid",
  moe_renormalize: true,
  routed_scaling_factor: 1.0,
  num_attention_heads: 2,
  q_lora_rank: 24,
  kv_lora_rank: 16,
  qk_nope_head_dim: 16,
  qk_rope_head_dim: 8,
  v_head_dim: 16,
  mla_use_nope: true,
  mla_use_output_gate: true,
  tie_word_embeddings: false,
  num_nextn_predict_layers: 0,
  linear_attn_config: {
    num_heads: 2,
    head_dim: 16,
    short_conv_kernel_size: 4,
    gate_lower_bound: -5.0,
    use_full_rank_gate: true,
    full_attn_layers: [3, 4],
    kda_layers: [1, 2],
  },
  quantization_config: { quant_method: "compressed-tensors", format: "mxfp4-pack-quantized" },
};

/** A checkpoint in a directory of its own, and where its trunk may go. */
export async function madeCheckpoint(options: CheckpointOptions = {}) {
  const root = await temporaryDirectory();
  const modelDir = join(root, "model");
  await writeCheckpoint(modelDir, options);
  return { root, modelDir, trunkDir: join(root, "trunk") };
}

interface Entry {
  name: string;
  dtype: "BF16" | "F32" | "U8";
  shape: number[];
  bytes: number;
}

const WIDTH = { BF16: 2, F32: 4, U8: 1 };

/** Writes a checkpoint into `dir`. */
export async function writeCheckpoint(dir: string, options: CheckpointOptions = {}): Promise<void> {
  const config = { model_type: "kimi_k3", text_config: { ...TEXT_CONFIG, ...options.config } };
  const text = JSON.stringify(config);
  mkdirSync(dir, { recursive: true });
  await writeFile(join(dir, "config.json"), text);
  const count = options.shards ?? 3;
  const shards: Entry[][] = Array.from({ length: count }, () => []);
  for (const [i, entry] of entriesOf(text).entries()) shards[i % count]!.push(entry);
  for (const [i, entries] of shards.entries()) {
    const number = (n: number, digits: number) => String(n).padStart(digits, "0");
    const file = `model-${number(i + 1, 5)}-of-${number(count, 6)}.safetensors`;
    await writeShard(join(dir, file), entries, options);
  }
}

function entriesOf(config: string): Entry[] {
  const parsed = parseConfig(config, "config.json");
  const { dense, embed, experts } = inventory(parsed);
  const entry = (name: string, dtype: Entry["dtype"], shape: number[]): Entry => ({
    name,
    dtype,
    shape,
    bytes: shape.reduce((a, b) => a * b, WIDTH[dtype]),
  });
  const entries = [...dense, embed].map((t) => entry(t.name, t.releasedDtype, t.shape));
  for (const layer of experts.layers) {
    for (let e = 0; e < experts.experts; e++) {
      for (const { suffix, shape } of experts.mxfp4) {
        const name = `language_model.model.layers.${layer}.block_sparse_moe.experts.${e}.${suffix}`;
        entries.push(entry(name, "U8", [...shape]));
      }
    }
  }
  return entries;
}

async function writeShard(path: string, entries: Entry[], options: CheckpointOptions): Promise<void> {
  const header: Record<string, unknown> = {};
  let at = 0;
  for (const { name, dtype, shape, bytes } of entries) {
    header[name] = { dtype, shape, data_offsets: [at, at + bytes] };
    at += bytes;
  }
  const text = Buffer.from(JSON.stringify(header));
  const padded = Buffer.alloc(Math.ceil(text.length / 8) * 8, " ");
  text.copy(padded);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  const handle = await open(path, "w");
  try {
    await handle.write(Buffer.concat([length, padded]), 0, 8 + padded.length, 0);
    await handle.truncate(8 + padded.length + at);
    let offset = 8 + padded.length;
    for (const entry of entries) {
      if (entry.dtype !== "U8") await writeTensor(handle, offset, entry, options);
      offset += entry.bytes;
    }
  } finally {
    await handle.close();
  }
}

async function writeTensor(
  handle: Awaited<ReturnType<typeof open>>,
  offset: number,
  entry: Entry,
  options: CheckpointOptions,
): Promise<void> {
  const sparse = options.sparse?.test(entry.name) ?? false;
  const chunk = sparse ? 4096 : 1 << 20;
  const places = sparse ? [0, Math.max(0, entry.bytes - chunk)] : undefined;
  for (let i = 0; i * chunk < entry.bytes && (!places || i < places.length); i++) {
    const start = places?.[i] ?? i * chunk;
    const size = Math.min(chunk, entry.bytes - start);
    const weights = weightBytes(
      entry.dtype,
      size,
      `${options.seed ?? 1}/${entry.name}/${start}`,
      options.deviation,
    );
    await handle.write(weights, 0, size, offset + start);
  }
}

/** Normal weights from a seed: a pool of 64 kB made once, then copied from seeded places. */
function weightBytes(dtype: string, size: number, label: string, deviation = 0.02): Buffer {
  const pool = normalPool(deviation);
  const seed = createHash("sha256").update(label).digest();
  const out = Buffer.alloc(size);
  const source = dtype === "F32" ? pool.f32 : pool.bf16;
  for (let at = 0, k = 0; at < size; k++) {
    const from = ((seed.readUInt32LE((k % 7) * 4) + k * 2654435761) % (source.length / 8)) * 4;
    at += source.copy(out, at, from, from + source.length / 2);
  }
  return out;
}

const pools = new Map<number, { bf16: Buffer; f32: Buffer }>();

function normalPool(deviation: number): { bf16: Buffer; f32: Buffer } {
  let pool = pools.get(deviation);
  if (!pool) {
    let state = 12345;
    const uniform = () => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return (state + 0.5) / 2 ** 32;
    };
    const values = Float32Array.from({ length: 1 << 16 }, () => {
      return deviation * Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
    });
    const f32 = Buffer.from(values.buffer);
    const bf16 = Buffer.from(Uint16Array.from(new Uint32Array(values.buffer), (b) => b >>> 16).buffer);
    pool = { bf16, f32 };
    pools.set(deviation, pool);
  }
  return pool;
}

/** SHA-256 of trunk.json and of the data file, by name: what "the identical trunk" means. */
export async function trunkDigest(dir: string): Promise<Record<string, string>> {
  const digest: Record<string, string> = {};
  for (const name of (await readdir(dir)).sort()) {
    if (name !== "trunk.json" && !name.endsWith(".bin")) continue;
    digest[name] = createHash("sha256")
      .update(await readFile(join(dir, name)))
      .digest("hex");
  }
  return digest;
}
