import { formatSeconds, StageError } from "@k3/stage";
import {
  type BenchPoint,
  type BenchResult,
  type CodecRatio,
  pointLabel,
  readBenchResult,
  threadsLabel,
  trunkLabel,
} from "./bench-result.ts";
import { type RatioInterval, ratioInterval } from "./statistics.ts";

export interface Comparison {
  a: string;
  b: string;
  /** What differs between the two that should not, when the comparison was forced. */
  differences: string[];
  points: { label: string; phase: string; ratio: RatioInterval }[];
  lines: string[];
}

const PHASES = ["cold_step", "prefill", "first_decode", "decode"] as const;

/**
 * Compares two bench results point by point: median(a) / median(b) with a bootstrap interval, "no difference" when it
 * crosses 1. Results that differ in model, prompts or machine are refused (E_USAGE) unless `force`.
 */
export async function compareRuns(
  a: string,
  b: string,
  { force }: { force?: boolean | undefined } = {},
): Promise<Comparison> {
  const [left, right] = await Promise.all([readBenchResult(a), readBenchResult(b)]);
  const differences = whatDiffers(left, right);
  if (differences.length > 0 && !force) {
    throw new StageError("E_USAGE", `${a} and ${b} are not comparable: ${differences.join("; ")}`, {
      hint: "measure both on the same machine, model and prompts, or add --force to compare all the same",
    });
  }
  const points = left.points.flatMap((point) => {
    const label = labelOf(point, left.points);
    const other = right.points.find((candidate) => labelOf(candidate, right.points) === label);
    if (!other) return [];
    return PHASES.flatMap((phase) => {
      const [x, y] = [sample(point, phase), sample(other, phase)];
      if (x.length < 3 || y.length < 3) return [];
      return [{ label, phase, ratio: ratioInterval(x, y) }];
    });
  });
  if (points.length === 0) {
    throw new StageError("E_USAGE", `${a} and ${b} share no point with at least three runs of a phase`);
  }
  const lines = [
    ...differences.map((text) => `compared although they differ: ${text}`),
    ...points.map(
      ({ label, phase, ratio }) => `${label}, ${phase.replace("_", " ")}: ${describeRatio(ratio)}`,
    ),
  ];
  return { a, b, differences, points, lines };
}

/** `0.81 (0.78 to 0.85)`, or `no difference (0.97 to 1.04)`. */
export function describeRatio({ ratio, low, high, noDifference }: RatioInterval): string {
  const interval = `(${low.toFixed(3)} to ${high.toFixed(3)})`;
  return noDifference ? `no difference ${interval}` : `${ratio.toFixed(3)} ${interval}`;
}

export function sample(point: BenchPoint, phase: (typeof PHASES)[number]): number[] {
  return point.runs.map((run) => run[phase]).filter((value): value is number => value !== null);
}

/** Every other codec over the first, at equal prompt, budget and threads; nothing for fewer than three runs a point. */
export function codecRatios(points: readonly BenchPoint[]): CodecRatio[] {
  return points.flatMap((point) => {
    const first = points.find(
      ({ prompt, memory, threads }) =>
        prompt === point.prompt && memory === point.memory && threads === point.threads,
    )!;
    const [ours, theirs] = [sample(point, "decode"), sample(first, "decode")];
    if (first === point || ours.length < 3 || theirs.length < 3) return [];
    const prompts = new Set(points.map(({ prompt }) => prompt)).size;
    return {
      point: `${pointLabel(point, points)}${prompts > 1 ? `, ${JSON.stringify(point.prompt)}` : ""}`,
      over: trunkLabel(first, points),
      ratio: ratioInterval(ours, theirs),
    };
  });
}

function labelOf(point: BenchPoint, among: readonly BenchPoint[]): string {
  const memory = point.memory === "auto" ? "automatic memory" : `${point.memory_bytes} bytes`;
  return `${memory}, ${threadsLabel(point)}, ${trunkLabel(point, among)}, ${JSON.stringify(point.prompt)}`;
}

function whatDiffers(a: BenchResult, b: BenchResult): string[] {
  const facts = (result: BenchResult): Record<string, unknown> => ({
    model: result.receipt.model.config_sha256,
    revision: result.receipt.model.dir_revision,
    layers: result.receipt.model.layers,
    prompts: [...new Set(result.points.map((point) => point.prompt))].sort().join(" | "),
    cpu: result.receipt.machine.cpu,
    "hardware threads": result.receipt.machine.threads,
    memory: result.receipt.machine.memory_bytes,
    disk: result.receipt.machine.disk,
    filesystem: result.receipt.machine.filesystem,
    kernel: result.receipt.machine.kernel,
    "treatment of caches": result.cold,
  });
  const [x, y] = [facts(a), facts(b)];
  return Object.keys(x)
    .filter((key) => x[key] !== y[key])
    .map((key) => `${key}: ${String(x[key])} against ${String(y[key])}`);
}

/** The noise floor of a result in words: the largest spread of sustained decode over its points. */
export function noiseFloor(result: Pick<BenchResult, "points">): string {
  const fewest = Math.min(...result.points.map((point) => point.runs.length));
  if (fewest < 3)
    return `noise floor: not known from ${fewest === 1 ? "one run" : `${fewest} runs`} a point; three or more tell what is a result`;
  const spreads = result.points.flatMap((point) => point.spread.decode ?? []);
  const seconds = result.points.flatMap((point) => point.median.decode ?? []);
  if (seconds.length === 0)
    return "sustained decode was not measured: it takes two decoded tokens after the first generated one";
  const [worst, slowest] = [Math.max(...spreads), Math.max(...seconds)];
  return `noise floor: single runs of sustained decode differ by up to ${(100 * worst).toFixed(1)} % (slowest point ${formatSeconds(slowest)} a token); nothing smaller is a result`;
}
