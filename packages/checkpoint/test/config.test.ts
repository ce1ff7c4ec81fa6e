import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { StageError } from "@k3/stage";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { parseConfig, readConfig } from "../src/config.ts";
import { CONFIG, TEXT_CONFIG, temporaryDirectory } from "./tiny.ts";

/** The required fields, as k3-model section 1 lists them. */
const REQUIRED = (
  "hidden_size num_hidden_layers vocab_size rms_norm_eps attn_res_block_size activation_situ_beta " +
  "activation_situ_linear_beta first_k_dense_replace intermediate_size num_experts num_experts_per_token " +
  "num_shared_experts moe_intermediate_size routed_expert_hidden_size latent_moe_use_norm moe_renormalize " +
  "routed_scaling_factor moe_layer_freq num_attention_heads q_lora_rank kv_lora_rank qk_nope_head_dim " +
  "qk_rope_head_dim v_head_dim mla_use_output_gate"
).split(" ");
const REQUIRED_LINEAR =
  "num_heads head_dim short_conv_kernel_size gate_lower_bound full_attn_layers kda_layers".split(" ");

const text = (changes: object) => ({ ...CONFIG, text_config: { ...TEXT_CONFIG, ...changes } });
const linear = (changes: object) =>
  text({ linear_attn_config: { ...TEXT_CONFIG.linear_attn_config, ...changes } });

function problems(config: unknown): string[] {
  try {
    parseConfig(JSON.stringify(config), "config.json");
  } catch (error) {
    expect(error).toBeInstanceOf(StageError);
    expect(error).toMatchObject({ code: "E_CONFIG", exit: 2 });
    return (error as StageError).details!["problems"] as string[];
  }
  return [];
}

describe("a config that is accepted", () => {
  test("nested under text_config", () => {
    expect(parseConfig(JSON.stringify(CONFIG), "c")).toEqual({
      hiddenSize: 8,
      layers: 4,
      vocabSize: 300,
      rmsNormEps: 1e-5,
      attnResBlockSize: 2,
      situBeta: 4,
      situLinearBeta: 25,
      intermediateSize: 12,
      experts: 3,
      expertsPerToken: 2,
      sharedExperts: 2,
      moeIntermediateSize: 64,
      routedExpertHiddenSize: 32,
      latentMoeUseNorm: true,
      moeRenormalize: true,
      routedScalingFactor: 1,
      mla: {
        heads: 2,
        qLoraRank: 5,
        kvLoraRank: 6,
        qkNopeHeadDim: 3,
        qkRopeHeadDim: 2,
        vHeadDim: 4,
        outputGate: true,
      },
      kda: { heads: 2, headDim: 4, convKernel: 4, gateLowerBound: -5 },
      attention: ["kda", "kda", "mla", "mla"],
      feedForward: ["dense", "moe", "moe", "moe"],
      bosId: 44,
      endIds: [46],
      padId: 299,
      maxPositions: null,
      quantization: "mxfp4",
    });
  });

  test("as the top level itself, without token ids and quantisation", () => {
    const { quantization_config: _, ...flat } = TEXT_CONFIG;
    expect(parseConfig(JSON.stringify(flat), "c")).toEqual({
      ...parseConfig(JSON.stringify(CONFIG), "c"),
      bosId: null,
      endIds: [],
      padId: null,
      quantization: null,
    });
  });

  test("end ids as a list, at either level, null meaning absent", () => {
    const ids = (config: object) => parseConfig(JSON.stringify(config), "c").endIds;
    expect(ids({ ...CONFIG, eos_token_id: [46, 45, 46] })).toEqual([46, 45]);
    expect(ids({ ...text({ eos_token_id: 7 }), eos_token_id: null })).toEqual([7]);
    expect(ids({ ...text({ eos_token_id: 7 }) })).toEqual([46]);
  });

  test("a dense layer wherever the layer is no multiple of moe_layer_freq", () => {
    expect(
      parseConfig(JSON.stringify(text({ moe_layer_freq: 2, first_k_dense_replace: 0 })), "c").feedForward,
    ).toEqual(["moe", "dense", "moe", "dense"]);
  });

  test("unknown fields, which the release has by the dozen", () => {
    expect(problems(text({ top_k: 50, id2label: { "0": "LABEL_0" }, num_key_value_heads: 96 }))).toEqual([]);
  });

  test("readConfig gives the hash of the bytes", async () => {
    const dir = await temporaryDirectory();
    await writeFile(join(dir, "config.json"), JSON.stringify(CONFIG));
    const { sha256, config } = await readConfig(dir);
    expect(sha256).toMatch(/^[0-9a-f]{64}$/);
    expect(config.layers).toBe(4);
    await writeFile(join(dir, "config.json"), `${JSON.stringify(CONFIG)}\n`);
    expect((await readConfig(dir)).sha256).not.toBe(sha256);
  });
});

describe("a config that is refused", () => {
  test.each(REQUIRED)("without %s, naming it", (field) => {
    const { [field]: _, ...rest } = TEXT_CONFIG as Record<string, unknown>;
    expect(problems({ ...CONFIG, text_config: rest })).toEqual([
      expect.stringContaining(`${field} is missing`),
    ]);
  });

  test.each(REQUIRED_LINEAR)("without linear_attn_config.%s, naming it", (field) => {
    const { [field]: _, ...rest } = TEXT_CONFIG.linear_attn_config as Record<string, unknown>;
    expect(problems(text({ linear_attn_config: rest }))).toEqual([
      expect.stringContaining(`linear_attn_config.${field} is missing`),
    ]);
  });

  test("with an empty text_config: all required fields at once", () => {
    const found = problems({ text_config: { linear_attn_config: {} } });
    for (const field of REQUIRED)
      expect(found).toContainEqual(expect.stringContaining(`text_config.${field} is missing`));
    for (const field of REQUIRED_LINEAR.filter((name) => !name.endsWith("layers"))) {
      expect(found).toContainEqual(expect.stringContaining(`linear_attn_config.${field} is missing`));
    }
  });

  test("with several faults of different kinds: all of them at once", () => {
    const found = problems(
      text({ hidden_size: "8", hidden_act: "silu", rms_norm_eps: 0, moe_renormalize: 1 }),
    );
    expect(found).toHaveLength(4);
  });

  test.each([
    ["another activation", text({ hidden_act: "silu" }), /hidden_act is "silu".*"situ"/],
    ["a softmax router", text({ moe_router_activation_func: "softmax" }), /moe_router_activation_func/],
    ["rotary attention", text({ mla_use_nope: false }), /mla_use_nope/],
    ["a low-rank gate", linear({ use_full_rank_gate: false }), /use_full_rank_gate/],
    ["expert groups", text({ num_expert_group: 8 }), /num_expert_group is 8/],
    ["chosen groups", text({ topk_group: 4 }), /topk_group is 4/],
    ["tied embeddings", text({ tie_word_embeddings: true }), /tie_word_embeddings/],
    ["tied embeddings at the top", { ...CONFIG, tie_word_embeddings: true }, /tie_word_embeddings/],
    ["layers for prediction ahead", text({ num_nextn_predict_layers: 1 }), /num_nextn_predict_layers is 1/],
    [
      "layers counted from 0",
      linear({ full_attn_layers: [2, 3], kda_layers: [0, 1] }),
      /kda_layers is \[0,1\]/,
    ],
    ["a layer in neither list", linear({ full_attn_layers: [3] }), /leave out layer 4 of 1 to 4/],
    ["a layer in both lists", linear({ kda_layers: [1, 2, 3] }), /name layer 3 more than once/],
    ["a layer twice in a list", linear({ full_attn_layers: [3, 4, 4] }), /name layer 4 more than once/],
    ["a layer beyond the last", linear({ full_attn_layers: [3, 4, 5] }), /whole numbers from 1 to 4/],
    [
      "more chosen experts than there are",
      text({ num_experts_per_token: 4 }),
      /num_experts_per_token is 4.*from 1 to 3/,
    ],
    ["a number in quotes", text({ hidden_size: "7168" }), /hidden_size is "7168"/],
    ["a width of 0", text({ kv_lora_rank: 0 }), /kv_lora_rank is 0/],
    ["a negative width", text({ v_head_dim: -128 }), /v_head_dim is -128/],
    ["a fraction", text({ hidden_size: 8.5 }), /hidden_size is 8.5/],
    ["a width beyond all bounds", text({ vocab_size: 2 ** 53 }), /vocab_size/],
    [
      "a product beyond all bounds",
      text({ num_attention_heads: 2 ** 20, v_head_dim: 2 ** 20 }),
      /v_head_dim\) is/,
    ],
    ["too many layers", text({ num_hidden_layers: 1e6 }), /num_hidden_layers/],
    ["too many experts over all layers", text({ num_experts: 2 ** 20 }), /num_hidden_layers x num_experts/],
    [
      "more than 2^53 bytes",
      text({
        num_experts: 2 ** 17,
        moe_intermediate_size: 2 ** 19,
        num_shared_experts: 1,
        routed_expert_hidden_size: 2 ** 20,
      }),
      /2\^53 bytes/,
    ],
    ["a decay bound that grows", linear({ gate_lower_bound: 5 }), /gate_lower_bound is 5.*below 0/],
    ["an epsilon of 0", text({ rms_norm_eps: 0 }), /rms_norm_eps/],
    ["an end id outside the vocabulary", { ...CONFIG, eos_token_id: 300 }, /eos_token_id is 300.*0 to 299/],
    ["an end id in words", { ...CONFIG, eos_token_id: "[EOS]" }, /eos_token_id/],
    [
      "affine 4-bit weights",
      text({ quantization_config: { quant_method: "gptq", bits: 4 } }),
      /quant_method is "gptq"/,
    ],
    [
      "another packing",
      text({ quantization_config: { quant_method: "compressed-tensors", format: "pack-quantized" } }),
      /format is "pack-quantized"/,
    ],
    [
      "groups of 64",
      text({
        quantization_config: {
          ...TEXT_CONFIG.quantization_config,
          config_groups: { group_0: { weights: { num_bits: 4, group_size: 64 } } },
        },
      }),
      /config_groups.group_0.weights.group_size is 64/,
    ],
    ["a text_config that is no object", { ...CONFIG, text_config: [] }, /text_config is \[\]/],
  ])("%s", (_, config, message) => {
    expect(problems(config)).toContainEqual(expect.stringMatching(message));
  });

  test.each([
    ["", "not JSON"],
    ["{", "not JSON"],
    ["[]", "not a JSON object"],
    ["null", "not a JSON object"],
  ])("the text %j", (source, message) => {
    expect(() => parseConfig(source, "DIR/config.json")).toThrow(`DIR/config.json: ${message}`);
  });

  test("bytes that are not UTF-8", () => {
    expect(() => parseConfig(new Uint8Array([0x7b, 0xff, 0x7d]), "c")).toThrow(/not JSON/);
  });

  test("a directory without config.json: the data is missing, not the config wrong", async () => {
    await expect(readConfig(await temporaryDirectory())).rejects.toMatchObject({ code: "E_DATA", exit: 3 });
  });
});

test("any value in any field is accepted or refused with E_CONFIG, never anything else", () => {
  const fields = [...Object.keys(TEXT_CONFIG), "max_position_embeddings"];
  fc.assert(
    fc.property(fc.constantFrom(...fields), fc.jsonValue(), (field, value) => {
      try {
        parseConfig(JSON.stringify(text({ [field]: value })), "c");
      } catch (error) {
        expect(error).toMatchObject({ code: "E_CONFIG" });
      }
    }),
    { numRuns: 2000 },
  );
});
