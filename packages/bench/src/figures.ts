/** Figures that predictions rest on. Each says where it comes from; `docs/performance.md` tells how to read ours again. */

/** How the release routes, from public runs of the real weights. */
export const RELEASE_ROUTING = {
  experts: 896,
  perToken: 16,
  /**
   * Tokens of a prompt and distinct experts of a layer: one token 16; five tokens 99.70 GB of experts over 92 layers
   * (the published cloud run); forty tokens 330.7 GB (kimi-k3-in-c v1.0.0, its performance notes of August 2026).
   */
  distinctPerLayer: [
    [1, 16],
    [5, 61.8],
    [40, 204.9],
    [400, 620],
  ] as readonly (readonly [number, number])[],
  /**
   * Cache size over the working set of a token (25.83 GB) and share of expert reads avoided: our policy replayed on the
   * recorded trace of twelve tokens (`k3 bench cache-sim`).
   */
  avoidedByCache: [
    [0.155, 0.059],
    [0.31, 0.107],
    [0.619, 0.195],
    [1.239, 0.335],
  ] as readonly (readonly [number, number])[],
} as const;

/** Stored over raw bytes of the packed trunk with codec bf16, on normally distributed weights (trunk/bench/codec.mjs). */
export const CODEC_RATIO = { bf16: 0.67, none: 1 } as const;

/**
 * Weight bytes that one core multiplies per second while they stream (docs/performance.md, twin), and tokens of a
 * prompt for which a weight costs no more than for one.
 */
export const COMPUTE = { bytesPerSecondPerCore: 18e9, freeTokens: 2 } as const;

/** Hashing and packing rates per core, bytes per second (docs/performance.md). */
export const HASH_BYTES_PER_SECOND = 1.4e9;
export const PACK_BYTES_PER_SECOND_PER_CORE = 1e9;

/** Hours of a month as clouds bill it. */
export const HOURS_PER_MONTH = 730;
