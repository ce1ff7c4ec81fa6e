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
import { insideNoise, LEAST_RUNS, type RatioInterval, ratioInterval, spread } from "./statistics.ts";

export interface Comparison {
  a: string;
  b: string;
  /** What differs between the two that should not, when the comparison was forced. */
  differences: string[];
  points: { label: string; phase: string; ratio: RatioInterval }[];
  lines: string[];
}

const PHASES = ["cold_step", "prefill", "first_decode", "decode"] as const;
type Phase = (typeof PHASES)[number];

/**
 * Compares two bench results point by point: median(a) / median(b) with a bootstrap interval, and whether that is a difference.
 * Results that differ in model, prompts or machine, or with points of wrong ids, are refused (E_USAGE) unless `force`.
 */
export async function compareRuns(
  a: string,
  b: string,
  { force }: { force?: boolean | undefined } = {},
): Promise<Comparison> {
  const [left, right] = await Promise.all([readBenchResult(a), readBenchResult(b)]);
  const differences = [...whatDiffers(left, right), ...wrongIds(a, left), ...wrongIds(b, right)];
  if (differences.length > 0 && !force) {
    throw new StageError("E_USAGE", `${a} and ${b} are not comparable: ${differences.join("; ")}`, {
      hint: "measure both on the same machine, model and prompts, with the expected ids, or add --force to compare all the same",
    });
  }
  const noise = (phase: Phase) => largestSpread([...left.points, ...right.points], phase);
  const points = left.points.flatMap((point) => {
    const label = labelOf(point, left.points);
    const other = right.points.find((candidate) => labelOf(candidate, right.points) === label);
    if (!other) return [];
    return PHASES.flatMap((phase) => {
      const [x, y] = [sample(point, phase), sample(other, phase)];
      if (x.length < 3 || y.length < 3) return [];
      return [{ label, phase, ratio: ratioInterval(x, y, { noise: noise(phase) }) }];
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

/** `0.810 (0.780 to 0.850)`, or `no difference (0.970 to 1.040)`; with the reason where the interval is none. */
export function describeRatio({ ratio, low, high, runs, noise, verdict }: RatioInterval): string {
  const interval = `(${low.toFixed(3)} to ${high.toFixed(3)})`;
  const measured = `${ratio.toFixed(3)} ${interval}`;
  if (verdict === "difference") return measured;
  if (verdict === "too few runs")
    return `${measured}, too few runs to tell (${runs}; at least ${LEAST_RUNS})`;
  if (low <= 1 && high >= 1) return `no difference ${interval}`;
  return insideNoise(ratio, noise)
    ? `no difference ${interval}: inside the noise floor of ${(100 * noise).toFixed(1)} %`
    : `no difference ${interval}: the runs of both lie among each other`;
}

/** The largest spread of a phase over the points: what single runs differ by. */
function largestSpread(points: readonly BenchPoint[], phase: Phase): number {
  return Math.max(
    0,
    ...points
      .map((point) => sample(point, phase))
      .flatMap((seconds) => (seconds.length > 1 ? spread(seconds) : [])),
  );
}

/** The noise floor of sustained decode, as a share. */
export const decodeNoise = (points: readonly BenchPoint[]) => largestSpread(points, "decode");

export function sample(point: BenchPoint, phase: Phase): number[] {
  return point.runs.map((run) => run[phase]).filter((value): value is number => value !== null);
}

/** Every other codec over the first, at equal prompt, budget and threads; nothing for fewer than three runs a point or wrong ids. */
export function codecRatios(points: readonly BenchPoint[]): CodecRatio[] {
  return points.flatMap((point) => {
    const first = points.find(
      ({ prompt, memory, threads }) =>
        prompt === point.prompt && memory === point.memory && threads === point.threads,
    )!;
    const [ours, theirs] = [sample(point, "decode"), sample(first, "decode")];
    if (first.ids_as_expected === false || point.ids_as_expected === false) return [];
    if (first === point || ours.length < 3 || theirs.length < 3) return [];
    const prompts = new Set(points.map(({ prompt }) => prompt)).size;
    return {
      point: `${pointLabel(point, points)}${prompts > 1 ? `, ${JSON.stringify(point.prompt)}` : ""}`,
      over: trunkLabel(first, points),
      ratio: ratioInterval(ours, theirs, { noise: decodeNoise(points) }),
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

/** The speed of a pass that computed something else says nothing. */
const wrongIds = (path: string, { points }: BenchResult) =>
  points
    .filter((point) => point.ids_as_expected === false)
    .map((point) => `${path}: wrong ids at ${labelOf(point, points)}`);

/** The noise floor of a result in words: the largest spread of sustained decode over its points. */
export function noiseFloor(result: Pick<BenchResult, "points">): string {
  const fewest = Math.min(...result.points.map((point) => point.runs.length));
  if (fewest < 3)
    return `noise floor: not known from ${fewest === 1 ? "one run" : `${fewest} runs`} a point; three or more tell what is a result`;
  const seconds = result.points.flatMap((point) => point.median.decode ?? []);
  if (seconds.length === 0)
    return "sustained decode was not measured: it takes two decoded tokens after the first generated one";
  const worst = (100 * decodeNoise(result.points)).toFixed(1);
  return `noise floor: single runs of sustained decode differ by up to ${worst} % (slowest point ${formatSeconds(Math.max(...seconds))} a token); nothing smaller is a result`;
}
