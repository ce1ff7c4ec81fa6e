import { StageError } from "@k3/stage";

/** The middle value of a sample (the mean of the two middle ones when it is even). Throws E_DEFECT when empty. */
export function median(sample: readonly number[]): number {
  if (sample.length === 0) throw new StageError("E_DEFECT", "the median of nothing");
  const sorted = [...sample].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** Half the distance between the extremes, as a share of the median: what a single run may be off by. */
export function spread(sample: readonly number[]): number {
  const middle = median(sample);
  return middle === 0 ? 0 : (Math.max(...sample) - Math.min(...sample)) / 2 / middle;
}

/** SplitMix64 (Steele, Lea, Flood 2014), for shuffles and resampling that can be repeated. */
export function randomSource(seed: number): () => number {
  let state = BigInt.asUintN(64, BigInt(seed));
  return () => {
    state = BigInt.asUintN(64, state + 0x9e3779b97f4a7c15n);
    let z = state;
    z = BigInt.asUintN(64, (z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
    z = BigInt.asUintN(64, (z ^ (z >> 27n)) * 0x94d049bb133111ebn);
    return Number((z ^ (z >> 31n)) >> 11n) / 2 ** 53;
  };
}

/** A copy in random order (Fisher-Yates). */
export function shuffled<T>(items: readonly T[], random: () => number): T[] {
  const out = [...items];
  for (let i = out.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [out[i], out[j]] = [out[j]!, out[i]!];
  }
  return out;
}

/**
 * The share of all ways to deal the values out to both sides whose rank sum of `a` lies as far from its mean as that of
 * `a` and `b` themselves: the exact two-sided test of Wilcoxon and of Mann and Whitney, ties at their middle rank.
 * Costs |a| (|a| + |b|)^3 at most.
 */
export function rankTest(a: readonly number[], b: readonly number[]): number {
  const all = [...a, ...b];
  // Twice the middle rank, so that ties stay whole numbers.
  const ranks = all.map(
    (value) =>
      all.filter((other) => other < value).length * 2 + all.filter((other) => other === value).length + 1,
  );
  // ways[k]: how many choices of k values have a rank sum.
  const ways = Array.from({ length: a.length + 1 }, () => new Map<number, number>());
  ways[0]!.set(0, 1);
  for (const rank of ranks)
    for (let k = a.length; k > 0; k--)
      for (const [sum, count] of ways[k - 1]!)
        ways[k]!.set(sum + rank, (ways[k]!.get(sum + rank) ?? 0) + count);
  const mean = a.length * (all.length + 1);
  const found = Math.abs(ranks.slice(0, a.length).reduce((sum, rank) => sum + rank, 0) - mean);
  let [far, total] = [0, 0];
  for (const [sum, count] of ways[a.length]!) {
    total += count;
    if (Math.abs(sum - mean) >= found) far += count;
  }
  return far / total;
}

export interface RatioInterval {
  /** median(a) / median(b). */
  ratio: number;
  /** The 95 % percentile-bootstrap interval of that ratio; of fewer than four runs a side, smallest over largest to the reverse. */
  low: number;
  high: number;
  /** Runs of the side that has fewer. */
  runs: number;
  /** What single runs differ by, as a share: a ratio nearer to 1 is no difference. */
  noise: number;
  /** "too few runs" where three runs a side lie apart: of equal sides 10 % do, too. */
  verdict: "difference" | "no difference" | "too few runs";
  /** Whether no difference may be claimed: whatever is not the verdict "difference". */
  noDifference: boolean;
}

/** Of three against three runs 2 of 20 orders keep the sides apart by chance, of four against four 2 of 70. */
export const LEAST_RUNS = 4;
const RESAMPLES = 4000;
const CHANCE = 0.05;
/** More than these, both sides together, and the bootstrap is enough by itself. */
const RANKED_RUNS = 40;

/**
 * The ratio of two medians with a 95 % percentile-bootstrap interval (Efron 1979), resampling a and b apart. It is a
 * difference if the interval leaves 1 out, the ratio is outside of the noise (the larger of `noise` and both spreads), there are
 * four runs a side, and chance would order the runs so in 5 % of cases at most: the interval alone promises too much of few.
 * Both need at least three runs: fewer say nothing about their own spread (E_USAGE).
 */
export function ratioInterval(
  a: readonly number[],
  b: readonly number[],
  { noise: floor = 0, seed = 1 }: { noise?: number; seed?: number } = {},
): RatioInterval {
  const runs = Math.min(a.length, b.length);
  if (runs < 3) {
    throw new StageError(
      "E_USAGE",
      `a ratio needs at least three runs of each side; there are ${a.length} and ${b.length}`,
    );
  }
  const random = randomSource(seed);
  const draw = (sample: readonly number[]) =>
    median(sample.map(() => sample[Math.floor(random() * sample.length)]!));
  const ratios = Array.from({ length: RESAMPLES }, () => draw(a) / draw(b)).sort((x, y) => x - y);
  const low = ratios[Math.floor(RESAMPLES * 0.025)]!;
  const high = ratios[Math.ceil(RESAMPLES * 0.975) - 1]!;
  const ratio = median(a) / median(b);
  const noise = Math.max(floor, spread(a), spread(b));
  const apart = !(low <= 1 && high >= 1) && !insideNoise(ratio, noise);
  const mixed = a.length + b.length <= RANKED_RUNS && rankTest(a, b) > CHANCE;
  const verdict = !apart
    ? "no difference"
    : runs < LEAST_RUNS
      ? "too few runs"
      : mixed
        ? "no difference"
        : "difference";
  return { ratio, low, high, runs, noise, verdict, noDifference: verdict !== "difference" };
}

/** Twice as slow is as far from 1 as twice as fast. */
export const insideNoise = (ratio: number, noise: number) => Math.max(ratio, 1 / ratio) - 1 <= noise;
