/**
 * What the cache rule of the engine saves, replayed on the one public trace of the released model's routing (12 tokens,
 * 92 layers of 16 of 896 experts), as shares: cache over one token's working set, and requests answered from the cache.
 * 4, 8, 16 and 32 GB are the points between; see expert-cache.ts, and its test, which replays them.
 */
const CURVE = [
  [0, 0],
  [0.155, 0.059],
  [0.31, 0.107],
  [0.619, 0.195],
  [1.239, 0.335],
  [2.478, 0.39],
] as const;

/**
 * Bytes that a cache of `cacheBytes` saves per decoded token, of the `perToken` that its experts take, in a model whose
 * experts take `all`. Beyond the trace (twice and a half the working set) it grows linearly to everything at `all`.
 */
export function expertBytesSaved(cacheBytes: number, perToken: number, all: number): number {
  if (perToken === 0) return 0;
  if (cacheBytes >= all) return perToken;
  const x = cacheBytes / perToken;
  const points: (readonly [number, number])[] = [
    ...CURVE.filter(([at]) => at * perToken < all),
    [all / perToken, 1],
  ];
  for (let i = 1; i < points.length; i++) {
    const [x0, y0] = points[i - 1]!;
    const [x1, y1] = points[i]!;
    if (x <= x1) return perToken * (y0 + ((y1 - y0) * (x - x0)) / (x1 - x0));
  }
  return perToken;
}
