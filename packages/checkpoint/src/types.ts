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
  /** What `quantization_config` declares; null when there is none. Whether experts are packed, the tensors decide. */
  quantization: "mxfp4" | null;
}

export type DenseDtype = "BF16" | "F32";

/** A dense text tensor that a config implies. `name` is complete (`language_model.model.layers.0...`). */
export interface TensorSpec {
  name: string;
  /** Zero-based layer, or null for the model-level tensors. */
  layer: number | null;
  /** Matrices are [out, in], row-major. Of `A_log` the length is a minimum: what follows the heads must be zero. */
  shape: number[];
}

/** A tensor of the inventory, with what the released checkpoint stores it as. */
export interface InventoryTensor extends TensorSpec {
  /** The dtype in the released files; BF16 and F32 are both accepted everywhere. */
  releasedDtype: DenseDtype;
  /** Elements in the released files: differs from the product of `shape` only for the padded `A_log`. */
  releasedElements: number;
}

/** One part of a routed expert, `...experts.{E}.{w}.{suffix}`; w1 is the gate, w3 the up and w2 the down projection. */
export interface ExpertPart {
  /** `w1.weight_packed`, `w2.weight`, ... */
  suffix: string;
  shape: [rows: number, columns: number];
}

/** Every text tensor that a config implies. */
export interface Inventory {
  /** All dense tensors but the embedding, in the order in which a forward pass needs them; `lm_head` is the last. */
  dense: InventoryTensor[];
  embed: InventoryTensor;
  experts: {
    /** Zero-based layers that have routed experts, ascending. */
    layers: number[];
    /** Experts of each of them. */
    experts: number;
    /** w1 packed, w1 scale, w2 packed, w2 scale, w3 packed, w3 scale: U8, two weights a byte, a scale per 32 columns. */
    mxfp4: ExpertPart[];
    /** w1, w2, w3 as BF16 or F32. */
    plain: ExpertPart[];
  };
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
  /** Of the file whose header was read: another one of its name, or one that was written to since, is told by them. */
  inode: bigint;
  mtimeNs: bigint;
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

/** A checkpoint on disk whose headers were read and found to hold every tensor that its config implies. */
export interface Checkpoint {
  dir: string;
  config: K3Config;
  /** SHA-256 of the bytes of config.json, in hex. */
  configSha256: string;
  /** The commit of the frozen snapshot manifest, or null in a directory made by hand. */
  revision: string | null;
  /** Layers that are located: config.layers, or the `layers` that openCheckpoint was asked for. */
  layers: number;
  /** Every *.safetensors file of the directory, by name. */
  shards: Shard[];
  /** The dense tensors of those layers and of the model level, in forward order, `lm_head` last. */
  dense: LocatedTensor[];
  embed: LocatedTensor;
  experts: ExpertTable;
  /** Tensors under `vision_tower.` and `mm_projector.`, checked for bounds only. */
  opaque: { tensors: number; bytes: number };
}

/** What is wrong with the structure of a checkpoint, by kind. */
export type StructureFaultKind =
  | "config"
  | "no-shards"
  | "unreadable"
  | "lfs-pointer"
  | "html"
  | "empty-file"
  | "hole"
  | "header-length"
  | "header-syntax"
  | "header-field"
  | "unknown-dtype"
  | "shape"
  | "offsets"
  | "span"
  | "overlap"
  | "gap"
  | "truncated"
  | "trailing-bytes"
  | "duplicate"
  | "missing"
  | "extra"
  | "wrong-shape"
  | "wrong-dtype"
  | "mixed-experts"
  | "a-log-tail";

export interface StructureFault {
  /** File name inside the model directory. */
  path: string;
  kind: StructureFaultKind;
  /** The tensor at fault, where there is one. */
  tensor?: string;
  expected: string;
  found: string;
  hint?: string;
}
