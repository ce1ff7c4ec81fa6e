import { createHash } from "node:crypto";
import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { StageError } from "@k3/stage";
import { FieldReader, isObject } from "./fields.ts";
import type { AttentionKind, FeedForwardKind, K3Config } from "./types.ts";

/** A config.json larger than this is not one (the released one has 7,006 bytes). */
const MAX_CONFIG_BYTES = 4 * 1024 * 1024;

/**
 * Bounds that keep every product of two widths, in bytes, below 2^53, and what is allocated per layer and expert
 * within some tens of megabytes. The release is far inside: widths to 163,840, 93 layers, 82,432 experts.
 */
const MAX_WIDTH = 2 ** 24;
const MAX_LAYERS = 4096;
const MAX_ALL_EXPERTS = 2 ** 20;

/**
 * The text model's configuration from config.json: the object under `text_config`, or the top level itself when there
 * is no `text_config`. Unknown fields are ignored; a field that the computation needs is never defaulted, because the
 * defaults of the published config class describe another model. Throws one E_CONFIG that lists every fault
 * (`details.problems`), naming the file as `where`.
 */
export function parseConfig(source: string | Uint8Array, where: string): K3Config {
  const problems: string[] = [];
  const top = parseObject(source, where);
  const nested = Object.hasOwn(top, "text_config") && top["text_config"] !== null;
  const outer = new FieldReader(top, "", problems);
  const text = nested ? outer.object("text_config") : outer;
  if (!text) throw refusal(where, problems);
  const linear = text.object("linear_attn_config");

  const layers = text.integer("num_hidden_layers", 1, MAX_LAYERS);
  const experts = text.integer("num_experts", 1, MAX_ALL_EXPERTS);
  const width = (key: string) => text.integer(key, 1, MAX_WIDTH);
  const positive = (key: string) => text.real(key, (n) => n > 0, "a number above 0");
  const config: K3Config = {
    hiddenSize: width("hidden_size"),
    layers,
    vocabSize: width("vocab_size"),
    rmsNormEps: text.real("rms_norm_eps", (n) => n > 0 && n < 1, "a number between 0 and 1"),
    attnResBlockSize: text.integer("attn_res_block_size", 1, MAX_WIDTH),
    situBeta: positive("activation_situ_beta"),
    situLinearBeta: positive("activation_situ_linear_beta"),
    intermediateSize: width("intermediate_size"),
    experts,
    expertsPerToken: text.integer(
      "num_experts_per_token",
      1,
      Number.isNaN(experts) ? MAX_ALL_EXPERTS : experts,
    ),
    sharedExperts: text.integer("num_shared_experts", 0, MAX_WIDTH),
    moeIntermediateSize: width("moe_intermediate_size"),
    routedExpertHiddenSize: width("routed_expert_hidden_size"),
    latentMoeUseNorm: text.boolean("latent_moe_use_norm"),
    moeRenormalize: text.boolean("moe_renormalize"),
    routedScalingFactor: positive("routed_scaling_factor"),
    mla: {
      heads: width("num_attention_heads"),
      qLoraRank: width("q_lora_rank"),
      kvLoraRank: width("kv_lora_rank"),
      qkNopeHeadDim: width("qk_nope_head_dim"),
      qkRopeHeadDim: width("qk_rope_head_dim"),
      vHeadDim: width("v_head_dim"),
      outputGate: text.boolean("mla_use_output_gate"),
    },
    kda: {
      heads: linear?.integer("num_heads", 1, MAX_WIDTH) ?? Number.NaN,
      headDim: linear?.integer("head_dim", 1, MAX_WIDTH) ?? Number.NaN,
      convKernel: linear?.integer("short_conv_kernel_size", 1, 64) ?? Number.NaN,
      gateLowerBound: linear?.real("gate_lower_bound", (n) => n < 0, "a number below 0") ?? Number.NaN,
    },
    attention: attentionOf(linear, layers, problems),
    feedForward: feedForwardOf(text, layers),
    bosId: null,
    endIds: [],
    padId: null,
    maxPositions: text.has("max_position_embeddings")
      ? text.integer("max_position_embeddings", 1, Number.MAX_SAFE_INTEGER)
      : null,
    quantization: quantizationOf(text.has("quantization_config") ? text : outer),
  };
  refuseOtherModels(outer, text, linear);
  checkProducts(config, problems);

  // Token ids stand at the top level in the release; a config without them is fine (generation_config.json may have them).
  const ids = (key: string): number[] => {
    const at = outer.has(key) ? outer : text;
    if (!at.has(key)) return [];
    const value = at.raw(key);
    const list = Array.isArray(value) ? value : [value];
    const most = Number.isNaN(config.vocabSize) ? MAX_WIDTH : config.vocabSize - 1;
    if (list.every((id) => Number.isInteger(id) && id >= 0 && id <= most)) return list as number[];
    at.fault(key, `a token id from 0 to ${most}, or a list of them`);
    return [];
  };
  config.bosId = ids("bos_token_id")[0] ?? null;
  config.padId = ids("pad_token_id")[0] ?? null;
  config.endIds = [...new Set(ids("eos_token_id"))];

  if (problems.length > 0) throw refusal(where, problems);
  return config;
}

/** Reads and parses DIR/config.json. Throws E_DATA when it is not there and E_CONFIG as parseConfig does. */
export async function readConfig(dir: string): Promise<{ config: K3Config; sha256: string }> {
  const path = join(dir, "config.json");
  const bytes = await readSmallFile(path, MAX_CONFIG_BYTES);
  if (!bytes) {
    throw new StageError("E_DATA", `${path}: there is no config.json, so this is not a model directory`, {
      hint: "give the directory that holds config.json and the *.safetensors files",
    });
  }
  return { config: parseConfig(bytes, path), sha256: createHash("sha256").update(bytes).digest("hex") };
}

/** The bytes of a file of at most `most` bytes; undefined when it does not exist; E_CONFIG when it is larger. */
export async function readSmallFile(path: string, most: number): Promise<Buffer | undefined> {
  let handle: Awaited<ReturnType<typeof open>>;
  try {
    // Not waiting: a pipe in the place of the file is refused below.
    handle = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
  try {
    const stat = await handle.stat();
    if (!stat.isFile()) throw new StageError("E_DATA", `${path}: not a regular file`);
    const { size } = stat;
    if (size > most)
      throw new StageError("E_CONFIG", `${path}: ${size} bytes, more than such a file can have`);
    return await handle.readFile();
  } finally {
    await handle.close();
  }
}

/** JSON text that must be an object; anything else is E_CONFIG. */
export function parseObject(source: string | Uint8Array, where: string): Record<string, unknown> {
  let value: unknown;
  try {
    const text =
      typeof source === "string" ? source : new TextDecoder("utf-8", { fatal: true }).decode(source);
    value = JSON.parse(text);
  } catch (error) {
    throw new StageError("E_CONFIG", `${where}: not JSON: ${(error as Error).message}`);
  }
  if (!isObject(value)) throw new StageError("E_CONFIG", `${where}: not a JSON object`);
  return value;
}

function refusal(where: string, problems: string[]): StageError {
  return new StageError(
    "E_CONFIG",
    `${where}: not a Kimi K3 config that can be computed:\n- ${problems.join("\n- ")}`,
    {
      hint: "use the config.json that was published with the weights; nothing is assumed for a missing field",
      details: { problems },
    },
  );
}

/** The two one-based lists must name every layer exactly once between them. */
function attentionOf(linear: FieldReader | undefined, layers: number, problems: string[]): AttentionKind[] {
  if (!linear || Number.isNaN(layers)) return [];
  const before = problems.length;
  const full = linear.integers("full_attn_layers", 1, layers);
  const kda = linear.integers("kda_layers", 1, layers);
  if (problems.length > before) return [];
  const count = new Uint8Array(layers + 1);
  for (const n of [...full, ...kda]) count[n] = Math.min(2, count[n]! + 1);
  const where = (times: number) =>
    Array.from({ length: layers }, (_, i) => i + 1).filter((n) => count[n] === times);
  const missing = where(0);
  const twice = where(2);
  const lists = "linear_attn_config.full_attn_layers and kda_layers (counted from 1)";
  if (missing.length > 0) problems.push(`${lists} leave out layer ${missing.join(", ")} of 1 to ${layers}`);
  if (twice.length > 0) problems.push(`${lists} name layer ${twice.join(", ")} more than once`);
  const mla = new Set(full);
  return Array.from({ length: layers }, (_, i) => (mla.has(i + 1) ? "mla" : "kda"));
}

/** Dense before first_k_dense_replace, and where the layer is no multiple of moe_layer_freq. */
function feedForwardOf(text: FieldReader, layers: number): FeedForwardKind[] {
  const dense = text.integer("first_k_dense_replace", 0, Number.isNaN(layers) ? MAX_LAYERS : layers);
  const every = text.integer("moe_layer_freq", 1, MAX_LAYERS);
  if (Number.isNaN(layers)) return [];
  return Array.from({ length: layers }, (_, i) => (i < dense || i % every !== 0 ? "dense" : "moe"));
}

/** Values with which the published code computes something else than we do (or has weights that we would ignore). */
function refuseOtherModels(outer: FieldReader, text: FieldReader, linear: FieldReader | undefined): void {
  text.refuseUnless("hidden_act", (v) => v === "situ", `"situ"`);
  text.refuseUnless("moe_router_activation_func", (v) => v === "sigmoid", `"sigmoid"`);
  text.refuseUnless("mla_use_nope", (v) => v === true, "true (a rotary embedding is not part of K3)");
  text.refuseUnless("num_expert_group", (v) => v === 1, "1 (grouped routing is not part of K3)");
  text.refuseUnless("topk_group", (v) => v === 1, "1 (grouped routing is not part of K3)");
  text.refuseUnless("num_nextn_predict_layers", (v) => v === 0, "0 (its weights would be ignored)");
  linear?.refuseUnless("use_full_rank_gate", (v) => v === true, "true (a low-rank gate is not part of K3)");
  for (const at of outer === text ? [text] : [outer, text]) {
    at.refuseUnless("tie_word_embeddings", (v) => v === false, "false (lm_head is a tensor of its own)");
  }
}

/** MXFP4 as compressed-tensors packs it is the one quantisation that is computed; anything else is refused here. */
function quantizationOf(at: FieldReader): "mxfp4" | null {
  if (!at.has("quantization_config")) return null;
  const quantization = at.object("quantization_config");
  if (!quantization) return null;
  const method = "compressed-tensors";
  const format = "mxfp4-pack-quantized";
  if (quantization.raw("quant_method") !== method) quantization.fault("quant_method", `"${method}"`);
  if (quantization.raw("format") !== format) quantization.fault("format", `"${format}"`);
  if (!quantization.has("config_groups")) return "mxfp4";
  const groups = quantization.object("config_groups");
  for (const name of groups?.keys() ?? []) {
    const group = groups?.object(name);
    if (!group?.has("weights")) continue;
    const weights = group.object("weights");
    weights?.refuseUnless("num_bits", (v) => v === 4, "4");
    weights?.refuseUnless("group_size", (v) => v === 32, "32");
    weights?.refuseUnless("type", (v) => v === "float", `"float"`);
  }
  return "mxfp4";
}

/** Derived widths keep within the same bound as the given ones, and all bytes together within 2^53. */
function checkProducts(config: K3Config, problems: string[]): void {
  const { mla, kda } = config;
  const widths: [string, number][] = [
    ["linear_attn_config.num_heads x head_dim", kda.heads * kda.headDim],
    [
      "num_attention_heads x (qk_nope_head_dim + qk_rope_head_dim)",
      mla.heads * (mla.qkNopeHeadDim + mla.qkRopeHeadDim),
    ],
    ["num_attention_heads x (qk_nope_head_dim + v_head_dim)", mla.heads * (mla.qkNopeHeadDim + mla.vHeadDim)],
    ["num_shared_experts x moe_intermediate_size", config.sharedExperts * config.moeIntermediateSize],
  ];
  for (const [what, value] of widths) {
    if (value > MAX_WIDTH) problems.push(`${what} is ${value}: it must be at most ${MAX_WIDTH}`);
  }
  if (config.layers * config.experts > MAX_ALL_EXPERTS) {
    problems.push(
      `num_hidden_layers x num_experts is ${config.layers * config.experts}: it must be at most ${MAX_ALL_EXPERTS}`,
    );
  }
  // An upper bound of the bytes of all tensors in F32. Doubles do not wrap: an absurd config only gets an absurd sum.
  const wide = Math.max(...widths.map(([, value]) => value), config.intermediateSize, config.vocabSize);
  const perLayer = 24 * 4 * wide * Math.max(config.hiddenSize, mla.qLoraRank, mla.kvLoraRank);
  const perExpert = 3 * 4 * config.moeIntermediateSize * config.routedExpertHiddenSize;
  if (config.layers * (perLayer + config.experts * perExpert) > Number.MAX_SAFE_INTEGER) {
    problems.push("the tensors of these sizes would have more than 2^53 bytes");
  }
}
