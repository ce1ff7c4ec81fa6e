import type { StageOptions } from "@k3/stage";

export interface ModelOptions extends StageOptions {
  /** A checkpoint in the released layout: config.json and its safetensors shards. */
  modelDir: string;
  /** A trunk packed from it by @k3/pack; without one the trunk's weights are read from the shards as they are. */
  trunkDir?: string | undefined;
  /** What the whole process may take, in bytes; "auto" (default) takes what is safely free. */
  memory?: number | "auto" | undefined;
  /** Threads that compute; all cores by default. */
  threads?: number | undefined;
  /** Run only the first layers, then the model's own final mix, norm and head. */
  layers?: number | undefined;
  /** The most prompt tokens that one pass takes, default 128; fewer when memory is short. The answer is the same. */
  chunk?: number | undefined;
  /** Positions that a session has room for, default 4096. */
  contextTokens?: number | undefined;
  /** Sessions and snapshots that may exist at the same time, default 1: each keeps the model's recurrent state. */
  sessions?: number | undefined;
  /**
   * Positions whose logits a prefill with `allLogits` may keep, 0 by default: room for them is planned. Without it they must fit into
   * what the plan leaves of the budget.
   */
  allLogits?: number | undefined;
  /** "scalar", "avx2", "avx512" or "neon" instead of the best there is; also by the environment variable K3_ISA. */
  isa?: string | undefined;
  /**
   * A file that counts how often experts are chosen, over all runs that name it: the cache prefers what was asked for
   * often. Made when it is missing; see `censusPath` for the usual place. Without one, and when not all layers run, only
   * this run counts.
   */
  census?: string | undefined;
  /** For experiments and tests; nothing here changes the answer. */
  tuning?: Tuning | undefined;
}

export interface Tuning {
  /** Size of the blocks that weights are read in when there is no packed trunk, default 1 MiB. */
  blockBytes?: number | undefined;
  /** Blocks in the ring of reads ahead, default 48 or what the budget allows. */
  ringBlocks?: number | undefined;
  /** Threads that read the trunk ahead, and the experts, default 8 each. */
  readers?: number | undefined;
  /** false: buffered reads even where O_DIRECT works. */
  direct?: boolean | undefined;
  /** "disk": always read ahead. "memory": workers always read for themselves. Default: as measured. */
  pace?: "disk" | "memory" | undefined;
  /** Experts that stay in memory, instead of the solved number. */
  expertsCached?: number | undefined;
}
