/** Sizes of the miniature: every mechanism of K3 at a width that a test can afford. */
export const HIDDEN = 256;
export const LAYERS = 9;
/** One-based, as the release counts: every fourth layer and the last, so that the last two MLA layers are adjacent. */
export const FULL_ATTENTION = [4, 8, 9];
export const VOCABULARY = 1024;
/** Ids below are byte pairs; the 256 from here on are special tokens. */
export const BASE_TOKENS = VOCABULARY - 256;
export const KDA_HEADS = 4;
export const KDA_DIM = 32;
/** Wider than the heads and zero behind them, as the release pads it. */
export const A_LOG_LENGTH = 32;
export const MLA_HEADS = 4;
export const Q_LORA = 64;
export const KV_LORA = 64;
export const NOPE = 32;
export const ROPE = 16;
export const V_DIM = 32;
export const DENSE_INNER = 384;
export const EXPERTS = 16;
const EXPERTS_PER_TOKEN = 4;
export const SHARED_EXPERTS = 2;
export const EXPERT_INNER = 64;
export const LATENT = 64;
export const CONV_KERNEL = 4;

/** Special tokens by their place after the byte pairs, as the release has them; the others are `<|reserved_token_ID|>`. */
export const SPECIALS: Readonly<Record<string, number>> = Object.fromEntries(
  (
    [
      ["[BOS]", 0],
      ["[EOS]", 1],
      ["<|end_of_msg|>", 2],
      ["<|open|>", 3],
      ["<|close|>", 4],
      ["<|sep|>", 5],
      ["[start_header_id]", 6],
      ["[end_header_id]", 7],
      ["[EOT]", 9],
      ["<|media_begin|>", 18],
      ["<|media_content|>", 19],
      ["<|media_end|>", 20],
      ["<|media_pad|>", 21],
      ["<osagent_mode>", 65],
      ["[UNK]", 254],
      ["[PAD]", 255],
    ] as const
  ).map(([name, place]) => [name, BASE_TOKENS + place]),
);

/** The id that ends a message, and a generation. */
export const END_OF_MESSAGE = SPECIALS["<|end_of_msg|>"]!;

/** config.json, nested as released, with the fields that the computation does not read but clients meet. */
export function configJson(): Record<string, unknown> {
  const specials = {
    bos_token_id: SPECIALS["[BOS]"]!,
    eos_token_id: END_OF_MESSAGE,
    pad_token_id: SPECIALS["[PAD]"]!,
  };
  const layers = Array.from({ length: LAYERS }, (_, i) => i + 1);
  return {
    architectures: ["KimiK3ForConditionalGeneration"],
    dtype: "bfloat16",
    ...specials,
    image_placeholder: "<|kimi_image_placeholder|>",
    media_placeholder_token_id: SPECIALS["<|media_pad|>"]!,
    model_type: "kimi_k3",
    text_config: {
      activation_situ_beta: 4,
      activation_situ_linear_beta: 25,
      architectures: ["KimiLinearForCausalLM"],
      attn_res_block_size: 4,
      ...specials,
      dtype: "bfloat16",
      first_k_dense_replace: 1,
      hidden_act: "situ",
      hidden_size: HIDDEN,
      intermediate_size: DENSE_INNER,
      kv_lora_rank: KV_LORA,
      latent_moe_use_norm: true,
      linear_attn_config: {
        full_attn_layers: FULL_ATTENTION,
        gate_lower_bound: -5,
        head_dim: KDA_DIM,
        kda_layers: layers.filter((layer) => !FULL_ATTENTION.includes(layer)),
        num_heads: KDA_HEADS,
        short_conv_kernel_size: CONV_KERNEL,
        use_full_rank_gate: true,
      },
      max_position_embeddings: 1048576,
      mla_use_nope: true,
      mla_use_output_gate: true,
      model_type: "kimi_linear",
      moe_intermediate_size: EXPERT_INNER,
      moe_layer_freq: 1,
      moe_renormalize: true,
      moe_router_activation_func: "sigmoid",
      num_attention_heads: MLA_HEADS,
      num_expert_group: 1,
      num_experts: EXPERTS,
      num_experts_per_token: EXPERTS_PER_TOKEN,
      num_hidden_layers: LAYERS,
      num_key_value_heads: MLA_HEADS,
      num_nextn_predict_layers: 0,
      num_shared_experts: SHARED_EXPERTS,
      q_lora_rank: Q_LORA,
      qk_nope_head_dim: NOPE,
      qk_rope_head_dim: ROPE,
      quantization_config: quantization(),
      rms_norm_eps: 1e-5,
      routed_expert_hidden_size: LATENT,
      routed_scaling_factor: 1,
      temperature: 1,
      tie_word_embeddings: false,
      // A sampling default of the published file, not the number of experts: readers must not take it for that.
      top_k: 50,
      topk_group: 1,
      topk_method: "noaux_tc",
      use_grouped_topk: true,
      v_head_dim: V_DIM,
      vocab_size: VOCABULARY,
    },
    tie_word_embeddings: false,
    vision_config: { patch_size: 14, text_hidden_size: HIDDEN, vt_hidden_size: 32 },
  };
}

function quantization(): Record<string, unknown> {
  const format = "mxfp4-pack-quantized";
  const weights = {
    group_size: 32,
    num_bits: 4,
    scale_dtype: "torch.uint8",
    strategy: "group",
    symmetric: true,
    type: "float",
  };
  return {
    config_groups: { group_0: { format, input_activations: null, targets: ["Linear"], weights } },
    format,
    // Incomplete, as published: whether a tensor is packed is told by its name, not by this list.
    ignore: [
      "re:.*self_attn.*",
      "re:.*shared_experts.*",
      "re:.*lm_head.*",
      "re:.*vision_tower.*",
      "re:.*mm_projector.*",
    ],
    kv_cache_scheme: null,
    quant_method: "compressed-tensors",
  };
}

/** tokenizer_config.json: `[EOS]` stands there as eos_token although messages end with another id, as published. */
export function tokenizerConfigJson(): Record<string, unknown> {
  const kept = new Set(["<|open|>", "<|close|>", "<|sep|>"]);
  const added = Object.entries(SPECIALS).map(([content, id]) => [
    String(id),
    {
      content,
      lstrip: false,
      normalized: false,
      rstrip: false,
      single_word: false,
      special: !kept.has(content),
    },
  ]);
  return {
    added_tokens_decoder: Object.fromEntries(added),
    bos_token: "[BOS]",
    eos_token: "[EOS]",
    model_max_length: 1048576,
    pad_token: "[PAD]",
    tokenizer_class: "TikTokenTokenizer",
    unk_token: "[UNK]",
  };
}

export const generationConfigJson = (): Record<string, unknown> => ({
  max_length: 1048576,
  eos_token_id: END_OF_MESSAGE,
});
