// A small checkpoint with a frozen manifest, made for one test. Hashes are computed here, not by the code under test.
import { createHash } from "node:crypto";
import { chmod, mkdir, mkdtemp, open, readFile, rm, stat, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { parseConfig, releasedShard } from "@k3/checkpoint";
import { type Snapshot, type SnapshotFile, type StageError, writeSnapshot } from "@k3/stage";
import { onTestFinished } from "vitest";
import type { VerifyOptions, VerifyResult } from "../src/types.ts";
import { verify } from "../src/verify.ts";

export const REPO = "someone/small-k3";
export const REVISION = "0123456789abcdef0123456789abcdef01234567";

export const CONFIG = {
  model_type: "kimi_k3",
  eos_token_id: 46,
  text_config: {
    hidden_size: 8,
    num_hidden_layers: 4,
    vocab_size: 300,
    rms_norm_eps: 1e-5,
    attn_res_block_size: 2,
    activation_situ_beta: 4,
    activation_situ_linear_beta: 25,
    first_k_dense_replace: 1,
    moe_layer_freq: 1,
    intermediate_size: 12,
    num_experts: 3,
    num_experts_per_token: 2,
    num_shared_experts: 1,
    moe_intermediate_size: 32,
    routed_expert_hidden_size: 32,
    latent_moe_use_norm: true,
    moe_renormalize: true,
    routed_scaling_factor: 1,
    num_attention_heads: 2,
    q_lora_rank: 5,
    kv_lora_rank: 6,
    qk_nope_head_dim: 3,
    qk_rope_head_dim: 2,
    v_head_dim: 4,
    mla_use_output_gate: true,
    linear_attn_config: {
      num_heads: 2,
      head_dim: 4,
      short_conv_kernel_size: 4,
      gate_lower_bound: -5,
      full_attn_layers: [3, 4],
      kda_layers: [1, 2],
    },
    quantization_config: { quant_method: "compressed-tensors", format: "mxfp4-pack-quantized" },
  },
};

export const shard = (n: number) => `model-${String(n).padStart(5, "0")}-of-000007.safetensors`;

export async function temporaryDirectory(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), "k3-verify-"));
  onTestFinished(async () => {
    await chmod(dir, 0o755).catch(() => undefined);
    await rm(dir, { recursive: true, force: true });
  });
  return dir;
}

/** Puts a file there, dated an hour ago: it is at rest, and its hash may be trusted. */
export async function put(dir: string, path: string, content: string | Uint8Array): Promise<void> {
  const full = join(dir, path);
  await mkdir(dirname(full), { recursive: true });
  await writeFile(full, content);
  await age(full);
}

export async function age(path: string): Promise<void> {
  const hourAgo = new Date(Date.now() - 3_600_000);
  await utimes(path, hourAgo, hourAgo);
}

/** Writes config, tokenizer, five shards, an empty file and one in a folder. */
export async function writeModel(dir: string): Promise<void> {
  await put(dir, "config.json", JSON.stringify(CONFIG));
  await put(dir, "generation_config.json", JSON.stringify({ eos_token_id: 46 }));
  await put(dir, "tiktoken.model", "AA== 0\nAQ== 1\n");
  await put(dir, ".gitattributes", "");
  await put(dir, "docs/notes on ünits.md", "text");
  const config = parseConfig(JSON.stringify(CONFIG), "CONFIG");
  for (let n = 1; n <= config.layers + 1; n++) {
    const { file, entries, size, dataStart } = releasedShard(config, n);
    const header: Record<string, unknown> = {};
    const bytes = Buffer.alloc(size);
    for (const { name, dtype, shape, begin, end } of entries) {
      header[name] = { dtype, shape, data_offsets: [begin, end] };
      bytes.fill(n * 8 + (begin % 7), dataStart + begin, dataStart + end);
      // Two heads, padded with zeros to four.
      if (name.endsWith("A_log")) bytes.fill(0, dataStart + begin + 8, dataStart + end);
    }
    const text = Buffer.from(JSON.stringify(header));
    bytes.writeBigUInt64LE(BigInt(dataStart - 8), 0);
    bytes.fill(" ", 8, dataStart);
    text.copy(bytes, 8);
    await put(dir, file, bytes);
  }
}

export const PATHS = [
  ".gitattributes",
  "config.json",
  "docs/notes on ünits.md",
  "generation_config.json",
  ...[1, 2, 3, 4, 5].map(shard),
  "tiktoken.model",
];

/** What the manifest must say of a file: LFS for weights and vocabulary, git for the rest. */
export async function listed(dir: string, path: string): Promise<SnapshotFile> {
  const bytes = await readFile(join(dir, path));
  const size = bytes.length;
  if (/safetensors$|\.model$|\.bin$/.test(path)) {
    return { path, size, sha256: createHash("sha256").update(bytes).digest("hex") };
  }
  return { path, size, gitSha1: createHash("sha1").update(`blob ${size}\0`).update(bytes).digest("hex") };
}

export async function freeze(dir: string, paths = PATHS, changes: Partial<Snapshot> = {}): Promise<Snapshot> {
  await mkdir(join(dir, ".cache/k3"), { recursive: true });
  const files = await Promise.all([...paths].sort().map((path) => listed(dir, path)));
  const snapshot: Snapshot = {
    format: "k3-snapshot",
    version: 1,
    endpoint: "https://huggingface.co",
    repo: REPO,
    revision: REVISION,
    files,
    selected: null,
    ...changes,
  };
  await writeSnapshot(dir, snapshot);
  return snapshot;
}

/** The directory of a test: written, then frozen. */
export async function model(): Promise<string> {
  const dir = await temporaryDirectory();
  await writeModel(dir);
  await freeze(dir);
  return dir;
}

/** Changes bytes in place without changing size or mtime of the file; a negative offset counts from its end. */
export async function overwrite(path: string, offset: number, bytes: Uint8Array | string): Promise<void> {
  const before = await stat(path);
  const handle = await open(path, "r+");
  await handle.write(
    Buffer.from(bytes),
    0,
    Buffer.from(bytes).length,
    offset < 0 ? before.size + offset : offset,
  );
  await handle.close();
  await utimes(path, before.atime, before.mtime);
}

/** Rewrites the header of a shard (its data stays): an object becomes JSON, a string is taken as it is. */
export async function editHeader(
  dir: string,
  file: string,
  edit: (header: Record<string, { dtype: string; shape: number[]; data_offsets: number[] }>) => unknown,
): Promise<void> {
  const bytes = await readFile(join(dir, file));
  const dataStart = 8 + Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, dataStart).toString());
  const edited = edit(header);
  const text = Buffer.from(typeof edited === "string" ? edited : JSON.stringify(edited ?? header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  await put(dir, file, Buffer.concat([length, text, bytes.subarray(dataStart)]));
}

/** What the command line would do: exit code, faults and error. */
export async function outcome(
  options: VerifyOptions,
): Promise<{ exit: number; faults: VerifyResult["faults"]; result?: VerifyResult; error?: StageError }> {
  try {
    const result = await verify(options);
    return { exit: result.ok ? 0 : 3, faults: result.faults, result };
  } catch (error) {
    return { exit: (error as StageError).exit, faults: [], error: error as StageError };
  }
}
