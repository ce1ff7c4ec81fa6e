import type { K3Config } from "./types.ts";

/**
 * Published figures of the release of Kimi K3 that the project pins. Sources: the repository `moonshotai/Kimi-K3` on
 * the Hugging Face Hub at `revision` (sizes and hashes of its file listing) and, for token ids, the published runs of
 * the engine kimi-k3-in-c v1.0.0 on the real weights (its docs/data/generations.txt and docs).
 */
export const RELEASE = {
  repo: "moonshotai/Kimi-K3",
  revision: "a590ce090cb049c93a33dfe8c208ec652aa20503",
  shards: 96,
  tensors: 497_220,
  /** All tensors, and all 96 files with their headers. */
  tensorBytes: 1_560_860_324_864,
  shardBytes: 1_560_936_091_448,
  visionBytes: 894_717_952,
  configSha256: "9710e121a58d03ac92c8d6da287a19541994319afbbe6d6202af001ffd379213",
  tokenizer: {
    file: "tiktoken.model",
    bytes: 2_795_286,
    sha256: "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103",
  },
  /** `<|end_of_msg|>` and `[EOS]`. */
  endIds: [163_585, 163_586],
} as const;

/** A greedy run of the real weights that was published: what a correct engine must reproduce. */
export interface PublishedRun {
  promptIds: readonly number[];
  /** Only the first layers, then the model's own end; null: all of them. */
  layers: number | null;
  greedyIds: readonly number[];
  prompt?: string;
  text?: string;
  /** Logit of the first greedy id at the last prompt position, where it was published. */
  logit?: number;
}

export const PUBLISHED_RUNS: readonly PublishedRun[] = [
  {
    prompt: "The capital of France is",
    promptIds: [1008, 10484, 318, 15383, 387],
    layers: null,
    greedyIds: [17374, 20829, 10, 427, 414, 1008, 606, 142957],
    text: ` Paris.",\n+            "The Eiffel`,
  },
  { promptIds: [3, 4, 5, 6, 7], layers: null, greedyIds: [2494, 9, 10], logit: 15.021948 },
  { promptIds: [1, 2, 3, 4, 5, 6, 7, 8], layers: 2, greedyIds: [8736, 152366, 136640] },
];

/**
 * Largest absolute value of the running residual sum after a layer (zero-based), over the five positions of the prompt
 * 3,4,5,6,7, as published from the real weights: checks a partial download layer by layer.
 */
export const PUBLISHED_RESIDUAL_PEAKS: Readonly<Record<number, number>> = {
  0: 0.145457,
  1: 0.187096,
  2: 2.080418,
  3: 0.503955,
  10: 27.333942,
  11: 25.269014,
  12: 2.188684,
  23: 21.762516,
  24: 0.1281,
  35: 14.519582,
  36: 0.269027,
  47: 76.281532,
  48: 0.248469,
  59: 136.707169,
  60: 1.779803,
  71: 23.164268,
  72: 0.767903,
  83: 9.943328,
  84: 3.216658,
  91: 19.182142,
  92: 31.06418,
};

/** The config of the release, for planning before anything is downloaded (its config.json, field by field). */
export function releasedConfig(): K3Config {
  const layers = 93;
  const mla = (layer: number) => layer % 4 === 3 || layer === layers - 1;
  return {
    hiddenSize: 7168,
    layers,
    vocabSize: 163_840,
    rmsNormEps: 1e-5,
    attnResBlockSize: 12,
    situBeta: 4,
    situLinearBeta: 25,
    intermediateSize: 33_792,
    experts: 896,
    expertsPerToken: 16,
    sharedExperts: 2,
    moeIntermediateSize: 3072,
    routedExpertHiddenSize: 3584,
    latentMoeUseNorm: true,
    moeRenormalize: true,
    routedScalingFactor: 1,
    mla: {
      heads: 96,
      qLoraRank: 1536,
      kvLoraRank: 512,
      qkNopeHeadDim: 128,
      qkRopeHeadDim: 64,
      vHeadDim: 128,
      outputGate: true,
    },
    kda: { heads: 96, headDim: 128, convKernel: 4, gateLowerBound: -5 },
    attention: Array.from({ length: layers }, (_, layer) => (mla(layer) ? "mla" : "kda")),
    feedForward: Array.from({ length: layers }, (_, layer) => (layer === 0 ? "dense" : "moe")),
    bosId: 163_584,
    endIds: [163_586],
    padId: 163_839,
    maxPositions: 1_048_576,
    quantization: "mxfp4",
  };
}

type Named = readonly [name: string, shape: readonly number[]];

/**
 * The vision tensors of the release's last two files, which a text engine skips. Shapes and name lengths reproduce
 * both file sizes to the byte; the names inside the tower are not known for certain and nothing depends on them.
 */
export const RELEASED_VISION: readonly (readonly Named[])[] = [
  [
    ["mm_projector.post_norm.weight", [7168]],
    ["mm_projector.proj.0.weight", [4096, 4096]],
    ["mm_projector.proj.2.weight", [7168, 4096]],
  ],
  [
    ...Array.from({ length: 27 }, (_, block): Named[] => {
      const at = `vision_tower.encoder.blocks.${block}.`;
      return [
        [`${at}norm0.weight`, [1024]],
        [`${at}norm1.weight`, [1024]],
        [`${at}wqkv.weight`, [4608, 1024]],
        [`${at}wo.weight`, [1024, 1536]],
        [`${at}mlp.fc0.weight`, [4096, 1024]],
        [`${at}mlp.fc1.weight`, [1024, 4096]],
      ];
    }).flat(),
    ["vision_tower.encoder.final_layernorm.weight", [1024]],
    ["vision_tower.patch_embed.pos_emb.weight", [64, 64, 1024]],
    ["vision_tower.patch_embed.proj.weight", [1024, 3, 14, 14]],
  ],
];
