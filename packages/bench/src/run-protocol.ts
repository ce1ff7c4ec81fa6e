import type { BlockDevice, ReadAccounts } from "./read-accounts.ts";

/** What a measured child process is asked to do, as JSON on its command line. */
export interface RunRequest {
  modelDir: string;
  trunkDir: string | undefined;
  memory: number | "auto";
  threads: number | undefined;
  promptIds: number[] | undefined;
  prompt: string | undefined;
  generate: number;
  accounts: ReadAccounts;
}

/** One step as the engine reports it, for the charts. */
export interface MeasuredStep {
  phase: "cold" | "prefill" | "decode";
  tokens: number;
  seconds: number;
  read: { trunk_bytes: number; head_bytes: number; expert_bytes: number };
  experts: { requested: number; resident: number; read: number };
}

/** What one run measured, in a process of its own. Seconds are wall clock. */
export interface MeasuredRun {
  /** Opening the model: headers, plan, memory, the native engine. */
  open: number;
  /** The first prefill of the process, when nothing is pinned or cached yet. */
  cold_step: number;
  /** The same prompt again in a new session of the same process. */
  prefill: number;
  /** The first decoded token after it, and the median of the others (null with fewer than two). */
  first_decode: number | null;
  decode: number | null;
  prompt_ids: number[];
  generated_ids: number[];
  steps: MeasuredStep[];
  /** Bytes that the passes had to read (cold, prefill and decode). */
  owed_bytes: number;
  /**
   * What came from the device meanwhile: as the process is charged (/proc/self/io), as its control group is, and as the
   * block devices that hold checkpoint and trunk count, whoever reads. Null where nobody counts.
   */
  device_bytes: number | null;
  cgroup_read_bytes: number | null;
  block_read_bytes: number | null;
  block_devices: (BlockDevice & { read_bytes: number | null })[];
  /** Expert bytes that a cache of experts saved, of those that the tokens asked for. */
  expert_bytes_requested: number;
  expert_bytes_avoided: number;
  /** CPU seconds over wall-clock seconds times threads; seconds that I/O was waited for over wall-clock seconds. */
  cpu_share: number;
  io_wait_share: number | null;
  peak_rss_bytes: number;
  /** Resident bytes over time: seconds since the start, bytes. */
  memory: [number, number][];
  codec: string | null;
  threads: number;
  memory_bytes: number;
}
