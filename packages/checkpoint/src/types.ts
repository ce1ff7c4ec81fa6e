/** How a layer attends: Kimi Delta Attention (recurrent) or multi-head latent attention (cached). */
export type AttentionKind = "kda" | "mla";
export type FeedForwardKind = "dense" | "moe";

/** The text model's configuration, from `text_config` of config.json, with every field present and checked. */
export interface K3Config {
  hiddenSize: number;
  layers: number;
  vocabSize: number;
  rmsNormEps: number;
  /** A block of the block attention residual closes before every layer whose index is a multiple of this. */
  attnResBlockSize: number;
  situBeta: number;
  situLinearBeta: number;
  intermediateSize: number;
  experts: number;
  expertsPerToken: number;
  sharedExperts: number;
  moeIntermediateSize: number;
  routedExpertHiddenSize: number;
  latentMoeUseNorm: boolean;
  moeRenormalize: boolean;
  routedScalingFactor: number;
  mla: {
    heads: number;
    qLoraRank: number;
    kvLoraRank: number;
    qkNopeHeadDim: number;
    qkRopeHeadDim: number;
    vHeadDim: number;
    outputGate: boolean;
  };
  kda: { heads: number; headDim: number; convKernel: number; gateLowerBound: number };
  /** One entry per layer, zero-based. */
  attention: AttentionKind[];
  feedForward: FeedForwardKind[];
  bosId: number | null;
  /** Ids that end a generation, from config.json (eos_token_id, a number or a list); may be empty. */
  endIds: number[];
  padId: number | null;
  maxPositions: number | null;
}

export type DenseDtype = "BF16" | "F32";

/** A dense text tensor that a config implies. `name` is complete (`language_model.model.layers.0...`). */
export interface TensorSpec {
  name: string;
  /** Zero-based layer, or null for the model-level tensors. */
  layer: number | null;
  shape: number[];
}

/** Where a tensor's bytes are: `shards[shard]`, `bytes` bytes from the absolute file offset `offset`. */
export interface LocatedTensor extends TensorSpec {
  dtype: DenseDtype;
  shard: number;
  offset: number;
  bytes: number;
}

export interface Shard {
  /** File name inside the model directory. */
  file: string;
  size: number;
  /** 8 + the length of the JSON header. */
  dataStart: number;
  /** SHA-256 of the 8 length bytes and the header, in hex. */
  headerSha256: string;
}

/**
 * Where the routed experts are, without names: 497,220 tensors cost a few megabytes. The parts of an expert are, in
 * this order, w1 packed, w1 scale, w2 packed, w2 scale, w3 packed, w3 scale (MXFP4) or w1, w2, w3 (plain).
 */
export interface ExpertTable {
  format: "mxfp4" | "BF16" | "F32";
  /** Parts per expert: 6 for MXFP4, 3 for plain. */
  parts: number;
  /** Layers that have experts, ascending; row i of the tables belongs to layers[i]. */
  layers: number[];
  experts: number;
  /** Absolute file offset of part p of expert e of layers[i], at [(i * experts + e) * parts + p]; -1 when absent. */
  offsets: Float64Array;
  /** Shard index, same indexing. */
  shards: Uint16Array;
  /** Bytes of each part. */
  partBytes: number[];
}
