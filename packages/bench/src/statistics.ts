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

export interface RatioInterval {
  /** median(a) / median(b). */
  ratio: number;
  /** The 95 % percentile-bootstrap interval of that ratio. */
  low: number;
  high: number;
  /** Whether the interval contains 1: then no difference may be claimed. */
  noDifference: boolean;
}

const RESAMPLES = 4000;

/**
 * The ratio of two medians with a 95 % percentile-bootstrap interval (Efron 1979), resampling a and b apart.
 * Both need at least three runs: fewer say nothing about their own spread (E_USAGE).
 */
export function ratioInterval(a: readonly number[], b: readonly number[], seed = 1): RatioInterval {
  if (a.length < 3 || b.length < 3) {
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
  return { ratio: median(a) / median(b), low, high, noDifference: low <= 1 && high >= 1 };
}
