import { type ByteArithmetic, byteArithmetic, type K3Config } from "@k3/checkpoint";
import { avoidedShare, distinctExperts } from "./expert-reuse.ts";
import { CODEC_RATIO, COMPUTE } from "./figures.ts";

/** What a token is predicted from. Bytes, and bytes per second. */
export interface Setting {
  config: K3Config;
  codec: "bf16" | "none";
  /** What is left of the budget for weights: pinned trunk first, then experts. */
  weightBytes: number;
  diskBytesPerSecond: number;
  /** Of the disk that the experts are read from, if it is another than the trunk's. */
  expertDiskBytesPerSecond?: number;
  threads: number;
  promptTokens: number;
}

export interface Prediction {
  /** The best split of the bytes for weights. */
  pinned_trunk_bytes: number;
  expert_cache_bytes: number;
  /** Read from the device for one decoded token, the output projection included. */
  read_bytes_per_token: number;
  /** Of that, what the whole model would be without any memory for weights. */
  owed_bytes_per_token: number;
  first_token_seconds: number;
  token_seconds: number;
  /** What a decoded token waits for: the device or the processor. */
  bound: "disk" | "compute";
}

/**
 * Seconds and bytes per token. A byte of trunk that is pinned saves a byte of every token; a byte of expert cache saves
 * about a quarter of one, so the trunk is pinned first and experts get what is left (design.md, "The budget"). Reading
 * and computing overlap, so a step takes the longer of the two; the first token reads the trunk once and each distinct
 * expert of the prompt once, and finds nothing pinned.
 */
export function predict(setting: Setting): Prediction {
  const sizes = byteArithmetic(setting.config);
  const stored = (sizes.trunkBytes + sizes.lmHeadBytes) * CODEC_RATIO[setting.codec];
  const pinned = Math.min(stored, Math.max(0, setting.weightBytes));
  const cache = Math.min(sizes.routedBytes, Math.max(0, setting.weightBytes - pinned));
  const experts =
    sizes.expertBytesPerToken * (1 - avoidedShare(cache, sizes.expertBytesPerToken || 1, sizes.routedBytes));
  const read = stored - pinned + experts + sizes.embedRowBytes;
  const disk = diskSeconds(setting, stored - pinned, experts + sizes.embedRowBytes);
  const compute = computeSeconds(sizes, setting, 1);
  const first = firstToken(sizes, setting, stored);
  return {
    pinned_trunk_bytes: Math.round(pinned),
    expert_cache_bytes: Math.round(cache),
    read_bytes_per_token: Math.round(read),
    owed_bytes_per_token: Math.round(stored + sizes.expertBytesPerToken + sizes.embedRowBytes),
    first_token_seconds: first,
    token_seconds: Math.max(disk, compute),
    bound: disk >= compute ? "disk" : "compute",
  };
}

function firstToken(sizes: ByteArithmetic, setting: Setting, stored: number): number {
  const { config, promptTokens } = setting;
  const layers = config.feedForward.filter((kind) => kind === "moe").length;
  const distinct = layers * distinctExperts(promptTokens, config.experts, config.expertsPerToken);
  const disk = diskSeconds(setting, stored, distinct * sizes.expertBytes);
  return Math.max(disk, computeSeconds(sizes, setting, promptTokens));
}

/** Two disks are taken to read in turns, which is the most that they take: how far they overlap is not known. */
function diskSeconds(setting: Setting, trunkBytes: number, checkpointBytes: number): number {
  const { diskBytesPerSecond, expertDiskBytesPerSecond = diskBytesPerSecond } = setting;
  return trunkBytes / diskBytesPerSecond + checkpointBytes / expertDiskBytesPerSecond;
}

function computeSeconds(sizes: ByteArithmetic, { threads }: Setting, tokens: number): number {
  const passes = Math.max(1, tokens / COMPUTE.freeTokens);
  const bytes = (sizes.trunkBytes + sizes.expertBytesPerToken) * passes + sizes.lmHeadBytes;
  return bytes / (COMPUTE.bytesPerSecondPerCore * threads);
}

/** Positions of context that a prediction leaves room for. */
const CONTEXT_TOKENS = 4096;
/**
 * The working memory of the smallest pass beside that; of the release it comes to what the engine's own plan of the
 * full-size twin asks for, 940 MB in all.
 */
const WORKING_BYTES = 112e6;

/**
 * About what a model needs at the least: its recurrent state, the latent cache of a 4k context, an expert on its way, and
 * the working memory. The engine's own plan, made from the files, is what counts in a run.
 */
export function leastMemoryBytes(config: K3Config): number {
  const sizes = byteArithmetic(config);
  const share = Math.min(1, sizes.trunkBytes / RELEASED_TRUNK_BYTES);
  return Math.round(
    120e6 +
      WORKING_BYTES * share +
      sizes.kdaStateBytes +
      sizes.latentBytesPerToken * CONTEXT_TOKENS +
      sizes.expertBytes,
  );
}

const RELEASED_TRUNK_BYTES = 108_811_877_376;
