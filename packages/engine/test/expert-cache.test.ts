import { Random } from "@k3/testkit";
import { expect, test } from "vitest";
import { type ExpertTrace, Model, type PassRecord, simulateExpertCache } from "../src/index.ts";
import { packedMiniature } from "./miniature.ts";

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

test("the engine follows the rule: about as many hits as the replay of what it chose", async () => {
  const { dir } = await packedMiniature();
  for (const expertsCached of [6, 20, 40]) {
    const model = await Model.open({ modelDir: dir, memory: 8e9, chunk: 1, tuning: { expertsCached } });
    const session = model.session();
    const records: PassRecord[] = [];
    const ids = Array.from({ length: 60 }, (_, i) => (i * 17) % 190);
    await session.prefill(ids, { trace: true, onPass: (record) => records.push(record) });
    await model.close();
    const top = model.config.expertsPerToken;
    const rows = records[0]!.experts!.length / top;
    const trace: ExpertTrace = Array.from({ length: rows }, (_, row) =>
      records.map(({ experts }) => [...experts!.subarray(row * top, (row + 1) * top)]),
    );
    const { requests, hits } = simulateExpertCache(trace, "k3", expertsCached);
    const resident = records.reduce((sum, { stats }) => sum + stats.experts.resident, 0);
    expect(records.reduce((sum, { stats }) => sum + stats.experts.requested, 0)).toBe(requests);
    expect(resident).toBeGreaterThan(0);
    // Experts of one layer arrive in any order, and the order decides between equals.
    expect(Math.abs(resident - hits) / requests).toBeLessThan(0.04);
  }
});
