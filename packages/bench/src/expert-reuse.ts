import { RELEASE_ROUTING } from "./figures.ts";

/**
 * Distinct routed experts of one layer that a chunk of `tokens` tokens uses. With the release's 16 of 896 it follows
 * the published counts (log-log between them); elsewhere independent draws, an upper bound.
 */
export function distinctExperts(tokens: number, experts: number, perToken: number): number {
  if (tokens <= 1) return Math.min(experts, perToken * tokens);
  const independent = experts * (1 - (1 - perToken / experts) ** tokens);
  const known = RELEASE_ROUTING.distinctPerLayer;
  if (experts !== RELEASE_ROUTING.experts || perToken !== RELEASE_ROUTING.perToken) return independent;
  const next = known.findIndex(([count]) => count >= tokens);
  const [a, b] = next > 0 ? [known[next - 1]!, known[next]!] : [known.at(-2)!, known.at(-1)!];
  const slope = Math.log(b[1] / a[1]) / Math.log(b[0] / a[0]);
  return Math.min(experts, independent, a[1] * (tokens / a[0]) ** slope);
}

/**
 * Share of the expert reads of a decoded token that an expert cache of so many bytes avoids: by the recorded trace, and
 * beyond it on a straight line to the cache that holds all experts and avoids every read.
 */
export function avoidedShare(cacheBytes: number, workingSetBytes: number, allBytes: number): number {
  if (cacheBytes >= allBytes) return 1;
  const known = RELEASE_ROUTING.avoidedByCache;
  const size = cacheBytes / workingSetBytes;
  let [x0, y0] = [0, 0];
  for (const [x, y] of known) {
    if (size <= x) return y0 + ((y - y0) * (size - x0)) / (x - x0);
    [x0, y0] = [x, y];
  }
  return y0 + ((1 - y0) * (size - x0)) / (allBytes / workingSetBytes - x0);
}
