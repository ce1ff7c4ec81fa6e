// A tiny checkpoint in the released layout, written out name by name: what the code under test must find.
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";

export interface TinyTensor {
  name: string;
  dtype: string;
  shape: number[];
  data: Buffer;
}

const WIDTH: Record<string, number> = { F32: 4, BF16: 2, U8: 1, F16: 2, I64: 8 };

export function tensor(name: string, dtype: string, shape: number[]): TinyTensor {
  const bytes = shape.reduce((product, n) => product * n, WIDTH[dtype]!);
  // Some bytes that differ from tensor to tensor, and are no NaN.
  return { name, dtype, shape, data: Buffer.alloc(bytes, (name.length * 7) % 60) };
}

/** Four layers: dense KDA, MoE KDA, MoE MLA, MoE MLA. */
export const TEXT_CONFIG = {
  hidden_size: 8,
  num_hidden_layers: 4,
  vocab_size: 300,
  rms_norm_eps: 1e-5,
  attn_res_block_size: 2,
  hidden_act: "situ",
  activation_situ_beta: 4.0,
  activation_situ_linear_beta: 25.0,
  first_k_dense_replace: 1,
  moe_layer_freq: 1,
  intermediate_size: 12,
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
  q_lora_rank: 5,
  kv_lora_rank: 6,
  qk_nope_head_dim: 3,
  qk_rope_head_dim: 2,
  v_head_dim: 4,
  mla_use_nope: true,
  mla_use_output_gate: true,
  tie_word_embeddings: false,
  num_nextn_predict_layers: 0,
  linear_attn_config: {
    num_heads: 2,
    head_dim: 4,
    short_conv_kernel_size: 4,
    gate_lower_bound: -5.0,
    use_full_rank_gate: true,
    full_attn_layers: [3, 4],
    kda_layers: [1, 2],
  },
  quantization_config: { quant_method: "compressed-tensors", format: "mxfp4-pack-quantized" },
};

export const CONFIG = {
  architectures: ["KimiK3ForConditionalGeneration"],
  model_type: "kimi_k3",
  bos_token_id: 44,
  eos_token_id: 46,
  pad_token_id: 299,
  text_config: TEXT_CONFIG,
};

function layerTensors(layer: number): TinyTensor[] {
  const all: [string, string, number[]][] = [
    ["input_layernorm.weight", "BF16", [8]],
    ["post_attention_layernorm.weight", "BF16", [8]],
    ["self_attention_res_norm.weight", "BF16", [8]],
    ["mlp_res_norm.weight", "BF16", [8]],
    ["self_attention_res_proj.weight", "BF16", [1, 8]],
    ["mlp_res_proj.weight", "BF16", [1, 8]],
    ["self_attn.g_proj.weight", "BF16", [8, 8]],
    ["self_attn.o_proj.weight", "BF16", [8, 8]],
  ];
  if (layer < 2) {
    for (const x of "qkv") {
      all.push(
        [`self_attn.${x}_proj.weight`, "BF16", [8, 8]],
        [`self_attn.${x}_conv1d.weight`, "F32", [8, 1, 4]],
      );
    }
    all.push(
      ["self_attn.f_a_proj.weight", "BF16", [4, 8]],
      ["self_attn.f_b_proj.weight", "BF16", [8, 4]],
      ["self_attn.b_proj.weight", "BF16", [2, 8]],
      ["self_attn.A_log", "F32", [4]],
      ["self_attn.dt_bias", "F32", [8]],
      ["self_attn.o_norm.weight", "F32", [4]],
    );
  } else {
    all.push(
      ["self_attn.q_a_proj.weight", "BF16", [5, 8]],
      ["self_attn.q_a_layernorm.weight", "BF16", [5]],
      ["self_attn.q_b_proj.weight", "BF16", [10, 5]],
      ["self_attn.kv_a_proj_with_mqa.weight", "BF16", [8, 8]],
      ["self_attn.kv_a_layernorm.weight", "BF16", [6]],
      ["self_attn.kv_b_proj.weight", "BF16", [14, 6]],
    );
  }
  if (layer === 0) {
    all.push(
      ["mlp.gate_proj.weight", "BF16", [12, 8]],
      ["mlp.up_proj.weight", "BF16", [12, 8]],
      ["mlp.down_proj.weight", "BF16", [8, 12]],
    );
  } else {
    const moe = "block_sparse_moe.";
    all.push(
      [`${moe}gate.weight`, "BF16", [3, 8]],
      [`${moe}gate.e_score_correction_bias`, "F32", [3]],
      [`${moe}routed_expert_down_proj.weight`, "BF16", [32, 8]],
      [`${moe}routed_expert_up_proj.weight`, "BF16", [8, 32]],
      [`${moe}routed_expert_norm.weight`, "BF16", [32]],
      [`${moe}shared_experts.gate_proj.weight`, "BF16", [128, 8]],
      [`${moe}shared_experts.up_proj.weight`, "BF16", [128, 8]],
      [`${moe}shared_experts.down_proj.weight`, "BF16", [8, 128]],
    );
    for (let e = 0; e < 3; e++) {
      for (const w of ["w1", "w3"]) {
        all.push([`${moe}experts.${e}.${w}.weight_packed`, "U8", [64, 16]]);
        all.push([`${moe}experts.${e}.${w}.weight_scale`, "U8", [64, 1]]);
      }
      all.push([`${moe}experts.${e}.w2.weight_packed`, "U8", [32, 32]]);
      all.push([`${moe}experts.${e}.w2.weight_scale`, "U8", [32, 2]]);
    }
  }
  const tensors = all.map(([name, dtype, shape]) =>
    tensor(`language_model.model.layers.${layer}.${name}`, dtype, shape),
  );
  for (const { name, data } of tensors) if (name.endsWith("A_log")) data.fill(0, 2 * 4);
  return tensors;
}

/** Shards of the tiny checkpoint: a layer each, the model level, vision. */
export function tinyShards(): TinyTensor[][] {
  return [
    ...[0, 1, 2, 3].map(layerTensors),
    [
      tensor("language_model.model.embed_tokens.weight", "BF16", [300, 8]),
      tensor("language_model.lm_head.weight", "BF16", [300, 8]),
      tensor("language_model.model.norm.weight", "BF16", [8]),
      tensor("language_model.model.output_attn_res_norm.weight", "BF16", [8]),
      tensor("language_model.model.output_attn_res_proj.weight", "BF16", [1, 8]),
    ],
    [tensor("mm_projector.proj.0.weight", "BF16", [4, 4])],
    [tensor("vision_tower.patch_embed.proj.weight", "BF16", [4, 3, 2, 2])],
  ];
}

/** A safetensors file from an arbitrary header object (or its text) and data. */
export function safetensors(header: object | string, data: Buffer = Buffer.alloc(0)): Buffer {
  const text = Buffer.from(typeof header === "string" ? header : JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, text, data]);
}

/** The file that holds these tensors, widest elements first, then by name. */
export function encodeShard(tensors: TinyTensor[]): Buffer {
  const sorted = [...tensors].sort((a, b) => WIDTH[b.dtype]! - WIDTH[a.dtype]! || (a.name < b.name ? -1 : 1));
  const header: Record<string, unknown> = {};
  let at = 0;
  for (const { name, dtype, shape, data } of sorted) {
    header[name] = { dtype, shape, data_offsets: [at, at + data.length] };
    at += data.length;
  }
  const text = JSON.stringify(header);
  return safetensors(
    text.padEnd(Math.ceil(text.length / 8) * 8),
    Buffer.concat(sorted.map(({ data }) => data)),
  );
}

export const shardName = (n: number, of = 7) =>
  `model-${String(n).padStart(5, "0")}-of-${String(of).padStart(6, "0")}.safetensors`;

/** A directory of its own for one test. */
export async function temporaryDirectory(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), "k3-checkpoint-"));
  onTestFinished(() => rm(dir, { recursive: true, force: true }));
  return dir;
}

/** Writes a checkpoint directory; a test changes config or tensors beforehand, or files afterwards. */
export async function writeCheckpoint(
  config: object = CONFIG,
  shards: TinyTensor[][] = tinyShards(),
): Promise<string> {
  const dir = await temporaryDirectory();
  await writeFile(join(dir, "config.json"), JSON.stringify(config));
  for (const [i, tensors] of shards.entries()) {
    await writeFile(join(dir, shardName(i + 1)), encodeShard(tensors));
  }
  return dir;
}
