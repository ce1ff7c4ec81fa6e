import { Random } from "../random.ts";
import type { RawTensor } from "../reference/weights.ts";
import * as size from "./architecture.ts";
import { bf16Tensor, f32Tensor, mxfp4Tensors } from "./encode.ts";

const LAYER_PREFIX = "language_model.model.layers.";
export const HEAD = "language_model.lm_head.weight";

/** Each tensor has its own stream of numbers, so one tensor more does not change the others. */
type Source = (name: string) => Random;

/**
 * All tensors by name, shard by shard in the released arrangement: one layer a shard, then the model-level text
 * tensors, the projector, the vision tower. The last projection is random here; learning replaces it. The gains make
 * every mechanism matter: both SiTU caps engage, the bias changes which experts win, decay rates differ per head.
 */
export function randomWeights(seed: number): Map<string, RawTensor>[] {
  const source: Source = (name) => new Random(seed, name);
  const layers = Array.from({ length: size.LAYERS }, (_, layer) => layerTensors(source, layer));
  return [...layers, modelTensors(source), projectorTensors(source), visionTensors(source)];
}

class Tensors {
  readonly map = new Map<string, RawTensor>();
  readonly #source: Source;
  readonly #prefix: string;

  constructor(source: Source, prefix: string) {
    this.#source = source;
    this.#prefix = prefix;
  }

  /** A BF16 matrix whose outputs have about `gain` times the spread of its inputs. */
  matrix(name: string, shape: readonly number[], gain = 1): void {
    const random = this.#random(name);
    const spread = gain / Math.sqrt(shape.at(-1)!);
    this.#put(
      name,
      bf16Tensor(shape, () => random.normal() * spread),
    );
  }

  /** A norm's weights, around one. */
  norm(name: string, length: number, dtype: "BF16" | "F32" = "BF16"): void {
    const random = this.#random(name);
    const tensor = dtype === "BF16" ? bf16Tensor : f32Tensor;
    this.#put(
      name,
      tensor([length], () => 1 + 0.15 * random.normal()),
    );
  }

  f32(name: string, shape: readonly number[], value: (i: number, random: Random) => number): void {
    const random = this.#random(name);
    this.#put(
      name,
      f32Tensor(shape, (i) => value(i, random)),
    );
  }

  mxfp4(name: string, rows: number, columns: number, gain: number): void {
    const random = this.#random(name);
    const spread = gain / Math.sqrt(columns);
    const { packed, scale } = mxfp4Tensors(rows, columns, () => random.normal() * spread);
    this.#put(`${name}.weight_packed`, packed);
    this.#put(`${name}.weight_scale`, scale);
  }

  #random(name: string): Random {
    return this.#source(this.#prefix + name);
  }

  #put(name: string, tensor: RawTensor): void {
    this.map.set(this.#prefix + name, tensor);
  }
}

/** `from` at the first of `count` entries to `to` at the last. */
const ramp = (from: number, to: number, count: number) => (i: number) =>
  from + ((to - from) * i) / (count - 1);

function layerTensors(source: Source, layer: number): Map<string, RawTensor> {
  const { HIDDEN } = size;
  const t = new Tensors(source, `${LAYER_PREFIX}${layer}.`);
  for (const which of ["self_attention_res", "mlp_res"]) {
    t.norm(`${which}_norm.weight`, HIDDEN);
    t.matrix(`${which}_proj.weight`, [1, HIDDEN], 2);
  }
  t.norm("input_layernorm.weight", HIDDEN);
  t.norm("post_attention_layernorm.weight", HIDDEN);
  if (size.FULL_ATTENTION.includes(layer + 1)) mlaTensors(t);
  else kdaTensors(t);
  if (layer === 0) gatedTensors(t, "mlp.", size.DENSE_INNER, 0.5);
  else moeTensors(t);
  return t.map;
}

function kdaTensors(t: Tensors): void {
  const { HIDDEN, KDA_HEADS, KDA_DIM, CONV_KERNEL } = size;
  const wide = KDA_HEADS * KDA_DIM;
  for (const which of ["q", "k", "v"]) {
    t.matrix(`self_attn.${which}_proj.weight`, [wide, HIDDEN]);
    t.f32(`self_attn.${which}_conv1d.weight`, [wide, 1, CONV_KERNEL], (_, random) => 0.4 * random.normal());
  }
  t.matrix("self_attn.g_proj.weight", [wide, HIDDEN]);
  t.matrix("self_attn.f_a_proj.weight", [KDA_DIM, HIDDEN]);
  t.matrix("self_attn.f_b_proj.weight", [wide, KDA_DIM]);
  t.matrix("self_attn.b_proj.weight", [KDA_HEADS, HIDDEN]);
  const rate = ramp(-0.4, 1.2, KDA_HEADS);
  t.f32("self_attn.A_log", [size.A_LOG_LENGTH], (i) => (i < KDA_HEADS ? rate(i) : 0));
  t.f32("self_attn.dt_bias", [wide], (_, random) => 0.5 * random.normal() - 1);
  t.norm("self_attn.o_norm.weight", KDA_DIM, "F32");
  t.matrix("self_attn.o_proj.weight", [HIDDEN, wide]);
}

function mlaTensors(t: Tensors): void {
  const { HIDDEN, MLA_HEADS, Q_LORA, KV_LORA, NOPE, ROPE, V_DIM } = size;
  t.matrix("self_attn.q_a_proj.weight", [Q_LORA, HIDDEN]);
  t.norm("self_attn.q_a_layernorm.weight", Q_LORA);
  t.matrix("self_attn.q_b_proj.weight", [MLA_HEADS * (NOPE + ROPE), Q_LORA], 1.5);
  t.matrix("self_attn.kv_a_proj_with_mqa.weight", [KV_LORA + ROPE, HIDDEN]);
  t.norm("self_attn.kv_a_layernorm.weight", KV_LORA);
  t.matrix("self_attn.kv_b_proj.weight", [MLA_HEADS * (NOPE + V_DIM), KV_LORA], 1.5);
  t.matrix("self_attn.g_proj.weight", [MLA_HEADS * V_DIM, HIDDEN]);
  t.matrix("self_attn.o_proj.weight", [HIDDEN, MLA_HEADS * V_DIM], 1.5);
}

function gatedTensors(t: Tensors, at: string, inner: number, downGain: number): void {
  t.matrix(`${at}gate_proj.weight`, [inner, size.HIDDEN], 4);
  t.matrix(`${at}up_proj.weight`, [inner, size.HIDDEN], 12);
  t.matrix(`${at}down_proj.weight`, [size.HIDDEN, inner], downGain);
}

function moeTensors(t: Tensors): void {
  const { HIDDEN, LATENT, EXPERT_INNER, EXPERTS } = size;
  const at = "block_sparse_moe.";
  t.matrix(`${at}gate.weight`, [EXPERTS, HIDDEN]);
  t.f32(`${at}gate.e_score_correction_bias`, [EXPERTS], ramp(-0.15, 0.15, EXPERTS));
  t.matrix(`${at}routed_expert_down_proj.weight`, [LATENT, HIDDEN]);
  t.norm(`${at}routed_expert_norm.weight`, LATENT);
  t.matrix(`${at}routed_expert_up_proj.weight`, [HIDDEN, LATENT]);
  gatedTensors(t, `${at}shared_experts.`, EXPERT_INNER * size.SHARED_EXPERTS, 0.1);
  for (let e = 0; e < EXPERTS; e++) {
    t.mxfp4(`${at}experts.${e}.w1`, EXPERT_INNER, LATENT, 4);
    t.mxfp4(`${at}experts.${e}.w2`, LATENT, EXPERT_INNER, 1);
    t.mxfp4(`${at}experts.${e}.w3`, EXPERT_INNER, LATENT, 12);
  }
}

function modelTensors(source: Source): Map<string, RawTensor> {
  const { HIDDEN, VOCABULARY } = size;
  const t = new Tensors(source, "language_model.");
  t.matrix("model.embed_tokens.weight", [VOCABULARY, HIDDEN], 0.6 * Math.sqrt(HIDDEN));
  t.norm("model.norm.weight", HIDDEN);
  t.norm("model.output_attn_res_norm.weight", HIDDEN);
  t.matrix("model.output_attn_res_proj.weight", [1, HIDDEN], 2);
  t.matrix("lm_head.weight", [VOCABULARY, HIDDEN]);
  return t.map;
}

function projectorTensors(source: Source): Map<string, RawTensor> {
  const t = new Tensors(source, "mm_projector.");
  t.norm("post_norm.weight", size.HIDDEN);
  t.matrix("proj.0.weight", [128, 128]);
  t.matrix("proj.2.weight", [size.HIDDEN, 128]);
  return t.map;
}

/** A few tensors that a text engine must skip; the real names inside the tower are not known for certain. */
function visionTensors(source: Source): Map<string, RawTensor> {
  const t = new Tensors(source, "vision_tower.");
  t.matrix("encoder.blocks.0.wqkv.weight", [96, 32]);
  t.norm("encoder.final_layernorm.weight", 32);
  t.matrix("patch_embed.proj.weight", [32, 3, 14, 14]);
  return t.map;
}
