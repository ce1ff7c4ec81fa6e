import { Random } from "@k3/testkit";
import { expect, test } from "vitest";
import { simulateExpertCache } from "../src/index.ts";

/** Layers whose tokens choose some experts again and again among many that come once. */
function trace(layers: number, tokens: number, seed: number): number[][][] {
  const random = new Random(seed);
  return Array.from({ length: layers }, () =>
    Array.from({ length: tokens }, () => [random.below(3), 3 + random.below(60), 63 + random.below(60)]),
  );
}

test("a cache of everything misses each expert once; a cache of nothing misses always", () => {
  const t = trace(6, 20, 1);
  const distinct = t.reduce((sum, layer) => sum + new Set(layer.flat()).size, 0);
  for (const policy of ["lru", "k3", "belady"] as const) {
    expect(simulateExpertCache(t, policy, 10_000)).toEqual({ requests: 360, hits: 360 - distinct });
    expect(simulateExpertCache(t, policy, 0).hits).toBe(0);
  }
});

test("an LRU below one token's working set keeps nothing; the rule keeps what recurs; no rule beats Belady's", () => {
  for (let seed = 1; seed <= 5; seed++) {
    const t = trace(8, 30, seed);
    expect(simulateExpertCache(t, "lru", 12).hits).toBe(0);
    for (const slots of [4, 12, 24, 48]) {
      const belady = simulateExpertCache(t, "belady", slots).hits;
      const k3 = simulateExpertCache(t, "k3", slots).hits;
      expect(k3).toBeGreaterThan(0);
      expect(k3).toBeLessThanOrEqual(belady);
      expect(simulateExpertCache(t, "lru", slots).hits).toBeLessThanOrEqual(belady);
    }
    expect(simulateExpertCache(t, "k3", 12).hits).toBeGreaterThan(0.1 * 30 * 8);
  }
});
