import type { DenseDtype, ExpertPart, Inventory, InventoryTensor, K3Config } from "./types.ts";

const MODEL_PREFIX = "language_model.model.";
export const LAYERS_PREFIX = `${MODEL_PREFIX}layers.`;
export const EXPERTS_INFIX = ".block_sparse_moe.experts.";
export const OPAQUE_PREFIXES = ["vision_tower.", "mm_projector."] as const;
/** Columns that share one scale byte in MXFP4 (OCP Microscaling Formats v1.0, block size k). */
export const MXFP4_GROUP = 32;

/**
 * Every text tensor that a config implies, with shapes as in the released shard headers. The dense ones stand in the
 * order in which a forward pass needs them: per layer first the small ones (norms, residual projections, taps, decay
 * and bias vectors), then the matrices as they are used; after the layers the model-level vectors and `lm_head`.
 */
export function inventory(config: K3Config): Inventory {
  const dense: InventoryTensor[] = [];
  for (let layer = 0; layer < config.layers; layer++) {
    const prefix = `${LAYERS_PREFIX}${layer}.`;
    const kda = config.attention[layer] === "kda";
    const moe = config.feedForward[layer] === "moe";
    dense.push(
      ...[
        ...residualVectors(config),
        ...(kda ? kdaVectors(config) : mlaVectors(config)),
        ...(moe ? moeVectors(config) : []),
        ...(kda ? kdaMatrices(config) : mlaMatrices(config)),
        ...(moe ? moeMatrices(config) : denseMatrices(config)),
      ].map((row) => tensor(prefix, layer, row)),
    );
  }
  const { hiddenSize, vocabSize } = config;
  dense.push(
    ...(
      [
        ["output_attn_res_norm.weight", [hiddenSize]],
        ["output_attn_res_proj.weight", [1, hiddenSize]],
        ["norm.weight", [hiddenSize]],
      ] as Row[]
    ).map((row) => tensor(MODEL_PREFIX, null, row)),
    tensor("language_model.", null, ["lm_head.weight", [vocabSize, hiddenSize]]),
  );
  return {
    dense,
    embed: tensor(MODEL_PREFIX, null, ["embed_tokens.weight", [vocabSize, hiddenSize]]),
    experts: {
      layers: config.feedForward.flatMap((kind, layer) => (kind === "moe" ? [layer] : [])),
      experts: config.experts,
      mxfp4: expertMatrices(config).flatMap(([w, rows, columns]): ExpertPart[] => [
        { suffix: `${w}.weight_packed`, shape: [rows, columns / 2] },
        { suffix: `${w}.weight_scale`, shape: [rows, columns / MXFP4_GROUP] },
      ]),
      plain: expertMatrices(config).map(
        ([w, rows, columns]): ExpertPart => ({ suffix: `${w}.weight`, shape: [rows, columns] }),
      ),
    },
  };
}

/** The name after the layer's prefix, the shape, the released dtype (BF16 unless given), released elements if padded. */
type Row = [name: string, shape: number[], dtype?: DenseDtype, releasedElements?: number];

function tensor(prefix: string, layer: number | null, [name, shape, dtype, elements]: Row): InventoryTensor {
  return {
    name: prefix + name,
    layer,
    shape,
    releasedDtype: dtype ?? "BF16",
    releasedElements: elements ?? shape.reduce((product, n) => product * n, 1),
  };
}

function residualVectors({ hiddenSize }: K3Config): Row[] {
  return [
    ["self_attention_res_norm.weight", [hiddenSize]],
    ["self_attention_res_proj.weight", [1, hiddenSize]],
    ["input_layernorm.weight", [hiddenSize]],
    ["mlp_res_norm.weight", [hiddenSize]],
    ["mlp_res_proj.weight", [1, hiddenSize]],
    ["post_attention_layernorm.weight", [hiddenSize]],
  ];
}

function kdaVectors({ kda }: K3Config): Row[] {
  const wide = kda.heads * kda.headDim;
  return [
    ["self_attn.q_conv1d.weight", [wide, 1, kda.convKernel], "F32"],
    ["self_attn.k_conv1d.weight", [wide, 1, kda.convKernel], "F32"],
    ["self_attn.v_conv1d.weight", [wide, 1, kda.convKernel], "F32"],
    // One decay rate per head; the release pads the 96 of them with zeros to the head width, 128.
    ["self_attn.A_log", [kda.heads], "F32", Math.max(kda.heads, kda.headDim)],
    ["self_attn.dt_bias", [wide], "F32"],
    ["self_attn.o_norm.weight", [kda.headDim], "F32"],
  ];
}

function kdaMatrices({ kda, hiddenSize }: K3Config): Row[] {
  const wide = kda.heads * kda.headDim;
  return [
    ["self_attn.q_proj.weight", [wide, hiddenSize]],
    ["self_attn.k_proj.weight", [wide, hiddenSize]],
    ["self_attn.v_proj.weight", [wide, hiddenSize]],
    ["self_attn.f_a_proj.weight", [kda.headDim, hiddenSize]],
    ["self_attn.f_b_proj.weight", [wide, kda.headDim]],
    ["self_attn.b_proj.weight", [kda.heads, hiddenSize]],
    ["self_attn.g_proj.weight", [wide, hiddenSize]],
    ["self_attn.o_proj.weight", [hiddenSize, wide]],
  ];
}

function mlaVectors({ mla }: K3Config): Row[] {
  return [
    ["self_attn.q_a_layernorm.weight", [mla.qLoraRank]],
    ["self_attn.kv_a_layernorm.weight", [mla.kvLoraRank]],
  ];
}

function mlaMatrices({ mla, hiddenSize }: K3Config): Row[] {
  const out = mla.heads * mla.vHeadDim;
  return [
    ["self_attn.q_a_proj.weight", [mla.qLoraRank, hiddenSize]],
    ["self_attn.q_b_proj.weight", [mla.heads * (mla.qkNopeHeadDim + mla.qkRopeHeadDim), mla.qLoraRank]],
    ["self_attn.kv_a_proj_with_mqa.weight", [mla.kvLoraRank + mla.qkRopeHeadDim, hiddenSize]],
    ["self_attn.kv_b_proj.weight", [mla.heads * (mla.qkNopeHeadDim + mla.vHeadDim), mla.kvLoraRank]],
    ...(mla.outputGate ? ([["self_attn.g_proj.weight", [out, hiddenSize]]] as Row[]) : []),
    ["self_attn.o_proj.weight", [hiddenSize, out]],
  ];
}

function denseMatrices({ intermediateSize, hiddenSize }: K3Config): Row[] {
  return [
    ["mlp.gate_proj.weight", [intermediateSize, hiddenSize]],
    ["mlp.up_proj.weight", [intermediateSize, hiddenSize]],
    ["mlp.down_proj.weight", [hiddenSize, intermediateSize]],
  ];
}

function moeVectors({ experts, routedExpertHiddenSize, latentMoeUseNorm }: K3Config): Row[] {
  return [
    ["block_sparse_moe.gate.e_score_correction_bias", [experts], "F32"],
    ...(latentMoeUseNorm
      ? ([["block_sparse_moe.routed_expert_norm.weight", [routedExpertHiddenSize]]] as Row[])
      : []),
  ];
}

function moeMatrices(config: K3Config): Row[] {
  const { hiddenSize, experts, routedExpertHiddenSize: latent } = config;
  const shared = config.sharedExperts * config.moeIntermediateSize;
  const sharedMatrices: Row[] = [
    ["block_sparse_moe.shared_experts.gate_proj.weight", [shared, hiddenSize]],
    ["block_sparse_moe.shared_experts.up_proj.weight", [shared, hiddenSize]],
    ["block_sparse_moe.shared_experts.down_proj.weight", [hiddenSize, shared]],
  ];
  return [
    ["block_sparse_moe.gate.weight", [experts, hiddenSize]],
    ["block_sparse_moe.routed_expert_down_proj.weight", [latent, hiddenSize]],
    ...(shared > 0 ? sharedMatrices : []),
    ["block_sparse_moe.routed_expert_up_proj.weight", [hiddenSize, latent]],
  ];
}

/** w1 = gate, w2 = down, w3 = up, each in rows and columns of weights. */
function expertMatrices(config: K3Config): [w: string, rows: number, columns: number][] {
  const { moeIntermediateSize: inner, routedExpertHiddenSize: latent } = config;
  return [
    ["w1", inner, latent],
    ["w2", latent, inner],
    ["w3", inner, latent],
  ];
}
