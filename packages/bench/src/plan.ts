import { stat } from "node:fs/promises";
import { cpus } from "node:os";
import { join } from "node:path";
import { byteArithmetic, type K3Config, RELEASE, readConfig, releasedConfig } from "@k3/checkpoint";
import { availableMemory } from "@k3/engine";
import {
  formatBytes,
  formatSeconds,
  readSnapshot,
  type Snapshot,
  StageError,
  type StageOptions,
  selectedFiles,
} from "@k3/stage";
import {
  CODEC_RATIO,
  HASH_BYTES_PER_SECOND,
  HOURS_PER_MONTH,
  PACK_BYTES_PER_SECOND_PER_CORE,
} from "./figures.ts";
import { leastMemoryBytes, type Prediction, predict } from "./predict.ts";
import { probeDisk } from "./probe.ts";

/** What is planned for: a model, and what there is to download of it. */
export interface PlanSource {
  name: string;
  config: K3Config;
  downloadBytes: number;
  /** Where it is; null for what is not there yet. */
  dir: string | null;
  /** A file of it on the disk in question, to measure that disk with; null when none is large enough. */
  file: string | null;
}

export const RELEASED_PLAN_SOURCE: PlanSource = {
  name: RELEASE.repo,
  config: releasedConfig(),
  downloadBytes: RELEASE.shardBytes,
  dir: null,
  file: null,
};

/** A checkpoint directory, complete or not: its config, and what its manifest lists or its files hold. */
export async function planSourceOfDirectory(dir: string): Promise<PlanSource> {
  const { config } = await readConfig(dir);
  const snapshot = await readSnapshot(dir);
  const sizes = byteArithmetic(config);
  const largest = snapshot && selectedFiles(snapshot).sort((a, b) => b.size - a.size)[0];
  const file = largest && largest.size >= 256e6 ? join(dir, largest.path) : null;
  const usable = file && (await stat(file).catch(() => undefined))?.isFile();
  return {
    name: dir,
    dir,
    config,
    downloadBytes: snapshot ? snapshot.files.reduce((sum, { size }) => sum + size, 0) : sizes.textBytes,
    file: usable ? file : null,
  };
}

/**
 * A download that has just begun: its manifest is there, its config is not. The sizes are known, and the rest is taken
 * to be as in the released model, in proportion.
 */
export const planSourceOfSnapshot = (dir: string, snapshot: Snapshot): PlanSource => ({
  ...RELEASED_PLAN_SOURCE,
  name: snapshot.repo,
  dir,
  downloadBytes: selectedFiles(snapshot).reduce((sum, { size }) => sum + size, 0),
});

export interface PlanOptions extends StageOptions {
  source: PlanSource;
  memory: number | "auto";
  /** An existing directory on the disk in question; default that of the source, else the current one. */
  dir?: string | undefined;
  /** Measured when undefined. */
  diskBytesPerSecond?: number | undefined;
  /** Undefined: 1 Gbit/s, said so in the advice. */
  downloadBytesPerSecond?: number | undefined;
  codec?: "bf16" | "none" | undefined;
  threads?: number | undefined;
  promptTokens?: number | undefined;
  priceVmPerHour?: number | undefined;
  priceDiskPerGbMonth?: number | undefined;
  currency?: string | undefined;
}

export interface PlanResult {
  download_bytes: number;
  disk_bytes: number;
  stages: { fetch: { seconds: number }; verify: { seconds: number }; pack: { seconds: number } };
  read_bytes_per_token: number;
  first_token_seconds: number;
  token_seconds: number;
  cost: { currency: string; per_hour: number; total: number } | null;
  memory_bytes: number;
  disk_bytes_per_second: number;
  download_bytes_per_second: number;
  split: Pick<Prediction, "pinned_trunk_bytes" | "expert_cache_bytes" | "bound">;
  advice: string[];
}

/**
 * What a model will take on a machine, before anything is spent. Throws E_MEMORY with both numbers when the budget is
 * below the least that the model runs in. The total cost is the stages plus sixteen generated tokens.
 */
export async function plan(options: PlanOptions): Promise<PlanResult> {
  const { source, codec = "bf16", threads = cpus().length, promptTokens = 5 } = options;
  const memory = options.memory === "auto" ? availableMemory().bytes : options.memory;
  const least = leastMemoryBytes(source.config);
  if (memory < least) {
    throw new StageError(
      "E_MEMORY",
      `${source.name} needs at least ${formatBytes(least)} (${least} bytes) of memory; the plan has ${formatBytes(memory)} (${memory} bytes)`,
      {
        details: { needed: least, available: memory },
        hint: "plan with a larger --memory",
      },
    );
  }
  const disk = options.diskBytesPerSecond ?? (await measureDisk(options));
  const download = options.downloadBytesPerSecond ?? 125e6;
  const sizes = byteArithmetic(source.config);
  const trunk = (sizes.trunkBytes + sizes.lmHeadBytes) * CODEC_RATIO[codec];
  const setting = {
    config: source.config,
    codec,
    weightBytes: memory - least,
    diskBytesPerSecond: disk,
    threads,
    promptTokens,
  };
  const prediction = predict(setting);
  const stages = {
    fetch: { seconds: source.downloadBytes / Math.min(download, disk) },
    verify: { seconds: source.downloadBytes / Math.min(disk, HASH_BYTES_PER_SECOND) },
    pack: {
      seconds: Math.max(
        (sizes.trunkBytes + sizes.lmHeadBytes + trunk) / disk,
        (sizes.trunkBytes + sizes.lmHeadBytes) / (PACK_BYTES_PER_SECOND_PER_CORE * threads),
      ),
    },
  };
  const diskBytes = Math.round(source.downloadBytes + trunk);
  return {
    download_bytes: source.downloadBytes,
    disk_bytes: diskBytes,
    stages,
    read_bytes_per_token: prediction.read_bytes_per_token,
    first_token_seconds: prediction.first_token_seconds,
    token_seconds: prediction.token_seconds,
    cost: costOf(options, stages, prediction, diskBytes),
    memory_bytes: memory,
    disk_bytes_per_second: disk,
    download_bytes_per_second: download,
    split: prediction,
    advice: [
      ...adviceOn(setting, prediction),
      ...(options.downloadBytesPerSecond === undefined
        ? ["the link is taken as 1 Gbit/s; say what yours is with --download"]
        : []),
    ],
  };
}

/** A small model needs no gigabyte written to know its disk. */
export const scratchBytesFor = ({ downloadBytes }: PlanSource): number =>
  Math.min(2 ** 30, Math.max(2 ** 26, downloadBytes));

async function measureDisk({ source, signal, onEvent, ...options }: PlanOptions): Promise<number> {
  const dir = options.dir ?? source.dir ?? ".";
  const probe = await probeDisk(dir, {
    file: source.file ?? undefined,
    seconds: 1.5,
    scratchBytes: scratchBytesFor(source),
    signal,
    onEvent,
  });
  return probe.mixed;
}

/** Tokens that the total of a plan pays for. */
const PAID_TOKENS = 16;

function costOf(
  options: PlanOptions,
  stages: PlanResult["stages"],
  prediction: Prediction,
  diskBytes: number,
): PlanResult["cost"] {
  const { priceVmPerHour, priceDiskPerGbMonth, currency = "USD" } = options;
  if (priceVmPerHour === undefined && priceDiskPerGbMonth === undefined) return null;
  const perHour = (priceVmPerHour ?? 0) + ((priceDiskPerGbMonth ?? 0) * (diskBytes / 1e9)) / HOURS_PER_MONTH;
  const seconds =
    stages.fetch.seconds +
    stages.verify.seconds +
    stages.pack.seconds +
    prediction.first_token_seconds +
    (PAID_TOKENS - 1) * prediction.token_seconds;
  return { currency, per_hour: perHour, total: (perHour * seconds) / 3600 };
}

/** What would help most, each as a change and what a token would then take. */
function adviceOn(setting: Parameters<typeof predict>[0], now: Prediction): string[] {
  const changes: [string, Partial<typeof setting>][] = [
    ["a disk twice as fast", { diskBytesPerSecond: setting.diskBytesPerSecond * 2 }],
    ["twice the memory for weights", { weightBytes: setting.weightBytes * 2 + 1e9 }],
    ["twice the cores", { threads: setting.threads * 2 }],
    ...(setting.codec === "none"
      ? ([["packing with codec bf16", { codec: "bf16" }]] as [string, Partial<typeof setting>][])
      : []),
  ];
  return changes
    .map(([text, change]) => ({ text, seconds: predict({ ...setting, ...change }).token_seconds }))
    .filter(({ seconds }) => seconds < 0.95 * now.token_seconds)
    .sort((a, b) => a.seconds - b.seconds)
    .map(
      ({ text, seconds }) =>
        `${text}: ${formatSeconds(seconds)} a token instead of ${formatSeconds(now.token_seconds)}`,
    );
}
