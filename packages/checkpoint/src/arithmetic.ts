import { inventory } from "./inventory.ts";
import type { AttentionKind, ExpertTable, FeedForwardKind, InventoryTensor, K3Config } from "./types.ts";

/** Bytes of a checkpoint, of one decoded token and of a sequence's state. All are exact sums of tensor sizes. */
export interface ByteArithmetic {
  /** Dense bytes of each layer: everything of it but the routed experts. */
  layerBytes: number[];
  /** Their sum: what a forward pass streams before `lm_head`. */
  trunkBytes: number;
  embedBytes: number;
  lmHeadBytes: number;
  /** The three small tensors between the last layer and `lm_head`. */
  modelVectorBytes: number;
  /** One row of the embedding: what one token of input costs. */
  embedRowBytes: number;
  /** One routed expert; 0 in a model without any. */
  expertBytes: number;
  expertsPerLayerBytes: number;
  routedBytes: number;
  /** All text tensors. */
  textBytes: number;
  tensors: { routed: number; dense: number };
  /** Routed experts that one token uses over all layers, and their bytes: the reads of a token when none is cached. */
  expertsPerToken: number;
  expertBytesPerToken: number;
  /** Recurrent state of one sequence in F32, whatever its length: matrices and convolution taps of the KDA layers. */
  kdaStateBytes: number;
  /** Latent cache of one position in F32, over all MLA layers. */
  latentBytesPerToken: number;
}

const WIDTH = { BF16: 2, F32: 4 } as const;

/**
 * The byte sizes that a config implies, with the dtypes of the release and experts of the given format.
 *
 * State: per KDA layer heads x headDim^2 (the matrices) and 3 x heads x headDim x (convKernel - 1) (the taps of q, k
 * and v), in F32; per MLA layer and position kvLoraRank + qkRopeHeadDim values, in F32 (the absorbed form).
 */
export function byteArithmetic(config: K3Config, format: ExpertTable["format"] = "mxfp4"): ByteArithmetic {
  const { dense, embed, experts } = inventory(config);
  const layerBytes = new Array<number>(config.layers).fill(0);
  let modelVectorBytes = 0;
  for (const tensor of dense) {
    if (tensor.layer !== null) layerBytes[tensor.layer]! += releasedBytes(tensor);
    else if (tensor !== dense.at(-1)) modelVectorBytes += releasedBytes(tensor);
  }
  const trunkBytes = layerBytes.reduce((sum, bytes) => sum + bytes, 0);
  const parts = format === "mxfp4" ? experts.mxfp4 : experts.plain;
  const width = format === "mxfp4" ? 1 : WIDTH[format];
  const moeLayers = experts.layers.length;
  const expertBytes =
    moeLayers === 0 ? 0 : parts.reduce((sum, { shape: [rows, columns] }) => sum + rows * columns * width, 0);
  const routedBytes = moeLayers * experts.experts * expertBytes;
  const embedBytes = releasedBytes(embed);
  const lmHeadBytes = releasedBytes(dense.at(-1)!);
  const { kda, mla } = config;
  const count = (kind: AttentionKind) => config.attention.filter((attention) => attention === kind).length;
  const wide = kda.heads * kda.headDim;
  return {
    layerBytes,
    trunkBytes,
    embedBytes,
    lmHeadBytes,
    modelVectorBytes,
    embedRowBytes: embedBytes / config.vocabSize,
    expertBytes,
    expertsPerLayerBytes: experts.experts * expertBytes,
    routedBytes,
    textBytes: trunkBytes + embedBytes + lmHeadBytes + modelVectorBytes + routedBytes,
    tensors: { routed: moeLayers * experts.experts * parts.length, dense: dense.length + 1 },
    expertsPerToken: moeLayers * config.expertsPerToken,
    expertBytesPerToken: moeLayers * config.expertsPerToken * expertBytes,
    kdaStateBytes: count("kda") * 4 * (wide * kda.headDim + 3 * wide * (kda.convKernel - 1)),
    latentBytesPerToken: count("mla") * 4 * (mla.kvLoraRank + mla.qkRopeHeadDim),
  };
}

/** Dense bytes of the layers of one kind, or null when the model has none such: all of them are alike. */
export function layerBytesOf(
  config: K3Config,
  attention: AttentionKind,
  feedForward: FeedForwardKind,
  sizes: ByteArithmetic = byteArithmetic(config),
): number | null {
  const layer = config.attention.findIndex(
    (kind, i) => kind === attention && config.feedForward[i] === feedForward,
  );
  return layer < 0 ? null : sizes.layerBytes[layer]!;
}

function releasedBytes({ releasedElements, releasedDtype }: InventoryTensor): number {
  return releasedElements * WIDTH[releasedDtype];
}
