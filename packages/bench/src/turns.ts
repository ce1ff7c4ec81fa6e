import { randomSource, shuffled } from "./statistics.ts";

/** Whose run it is: a point of ours by its number, or the other engine. */
export type Turn = number | "other";

/**
 * In which order everything is run: in each round all points in an order of its own, and the other engine before or
 * after them in turn, A B B A, so that a drift of the machine falls on both sides alike. The same seed gives the same.
 */
export function turns(
  points: number,
  runs: number,
  { other, seed }: { other: boolean; seed: number },
): Turn[] {
  const random = randomSource(seed);
  const all = Array.from({ length: points }, (_, point) => point);
  return Array.from({ length: runs }, (_, round) => {
    const ours: Turn[] = shuffled(all, random);
    if (!other) return ours;
    return round % 2 === 1 ? ["other" as const, ...ours] : [...ours, "other" as const];
  }).flat();
}
