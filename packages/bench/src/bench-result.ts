import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { formatBytes, StageError } from "@k3/stage";
import type { Machine } from "./machine.ts";
import type { ReadAccounts } from "./read-accounts.ts";
import type { MeasuredRun } from "./run-protocol.ts";
import type { RatioInterval } from "./statistics.ts";

/** How caches were treated before each run. */
export type ColdMode = "drop" | "evict" | "none";

export interface BenchMedian {
  open: number;
  cold_step: number;
  prefill: number;
  /** Null where no token was decoded: the first one generated comes of the prefill. */
  first_decode: number | null;
  /** Sustained decode; null with fewer than two decoded tokens. */
  decode: number | null;
}

/** What is timed of a run, in its order. */
export const PHASES = [
  "open",
  "cold_step",
  "prefill",
  "first_decode",
  "decode",
] as const satisfies (keyof BenchMedian)[];

export interface BenchPoint {
  /** The budget of the first run, and what was asked for: with "auto" every run may get a little more or less. */
  memory_bytes: number;
  memory: number | "auto";
  threads: number;
  /** The trunk's, or null for dense weights that are read from the checkpoint. */
  codec: string | null;
  trunk: { dir: string; manifest_sha256: string } | null;
  prompt: string;
  /** What is known that the model answers; null for nothing. */
  expected_ids: number[] | null;
  runs: MeasuredRun[];
  median: BenchMedian;
  /** Half the range over the median, per phase: what one run may be off by. */
  spread: BenchMedian;
  /** Whether every run gave the expected ids; null when nothing is known to compare with but the other runs. */
  ids_as_expected: boolean | null;
}

/** What a result was made with: everything needed to make it again, and to refuse comparing it with another. */
export interface RunReceipt {
  versions: Record<string, string>;
  /** Of the source tree that the code was built in, `-dirty` where it was changed; null for installed packages. */
  commit: string | null;
  addon_sha256: string;
  model: { dir_revision: string | null; config_sha256: string; layers: number };
  /** Of the trunk; null for none and for several, whose hashes are in the points. */
  trunk_manifest_sha256: string | null;
  /** Who counted the bytes that came from the device. */
  accounts: ReadAccounts;
  options: Record<string, unknown>;
  machine: Machine;
}

export interface Against {
  command: string;
  seconds: number[];
  ours: number[];
  ids_equal: boolean;
  /** Ours over theirs: below 1, ours is faster. Null where ids were wrong or differ, or our runs ended before they decoded two tokens. */
  ratio: RatioInterval | null;
}

/** One codec against the first of the matrix, everything else being equal. */
export interface CodecRatio {
  point: string;
  over: string;
  /** Sustained decode of this point over that of the first codec: below 1, this one is faster. */
  ratio: RatioInterval;
}

export interface BenchResult {
  format: "k3-bench";
  version: 1;
  /** False when ids differed: between runs, from what is known, or from the other engine. */
  ok: boolean;
  cold: ColdMode;
  points: BenchPoint[];
  /** Empty for a single codec, and for fewer than three runs. */
  codec_ratios: CodecRatio[];
  against: Against | null;
  receipt: RunReceipt;
  out_dir: string;
  /** Runs that were measured before the bench was stopped and started again. */
  resumed_runs: number;
  /** What a reader should know first, in sentences. */
  lines: string[];
}

/** `codec bf16`, or `no trunk`; with the directory where trunks of the same codec are measured side by side. */
export function trunkLabel({ codec, trunk }: BenchPoint, among: readonly BenchPoint[]): string {
  if (codec === null) return "no trunk";
  const dirs = new Set(
    among.flatMap((point) => (point.codec === codec && point.trunk ? point.trunk.dir : [])),
  );
  return dirs.size > 1 ? `codec ${codec} of ${trunk!.dir}` : `codec ${codec}`;
}

/** `8.00 GB, 2 threads, codec bf16`: what tells a point from the others of its prompt. */
export function pointLabel(point: BenchPoint, among: readonly BenchPoint[]): string {
  return `${formatBytes(point.memory_bytes)}, ${threadsLabel(point)}, ${trunkLabel(point, among)}`;
}

export const threadsLabel = ({ threads }: BenchPoint) => (threads === 1 ? "1 thread" : `${threads} threads`);

const isMeasured = (run: MeasuredRun) =>
  PHASES.every((phase) => run[phase] === null || (Number.isFinite(run[phase]) && run[phase] > 0));

/** Reads a `bench.json`, or that of a directory. Throws E_DATA for anything else. */
export async function readBenchResult(given: string): Promise<BenchResult> {
  const found = await stat(given).catch(() => undefined);
  const path = found?.isDirectory() ? join(given, "bench.json") : given;
  let value: unknown;
  try {
    value = JSON.parse(await readFile(path, "utf8"));
  } catch (error) {
    if (error instanceof SyntaxError) throw new StageError("E_DATA", `${path}: not JSON: ${error.message}`);
    throw error;
  }
  const result = value as BenchResult;
  if (
    result?.format !== "k3-bench" ||
    result.version !== 1 ||
    !Array.isArray(result.points) ||
    !result.receipt?.machine ||
    !result.points.every((point) => Array.isArray(point.runs) && point.runs.every(isMeasured))
  ) {
    throw new StageError("E_DATA", `${path}: not a result of k3 bench`, {
      hint: "give the bench.json that k3 bench wrote",
    });
  }
  return result;
}
