import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type PlanInput, planMemory } from "../src/plan.ts";

/** Sizes like those of the released model, without the disk. */
function input(changes: Partial<PlanInput> = {}): PlanInput {
  const blocks = 106_000;
  const stored = 1_048_576;
  return {
    budgetBytes: 8e9,
    baselineBytes: 120e6,
    sizes: {
      activations: 30e6,
      activationsPerToken: 1.3e6,
      perWorker: 1.6e6,
      ringSlot: 1_056_768,
      expertSlot: 17_596_416,
      stateFixed: 464_633_856,
      statePosition: 55_296,
      tables: 12e6,
      storedBytes: new Uint32Array(blocks).fill(stored),
      blockBytes: new Uint32Array(blocks).fill(stored + 4096),
    },
    threads: 2,
    contextTokens: 4096,
    sessions: 1,
    chunk: 128,
    vocab: 163_840,
    moeLayers: 92,
    experts: 896,
    expertsPerToken: 16,
    expertBytes: 17_547_264,
    ...changes,
  };
}

const total = (plan: ReturnType<typeof planMemory>) =>
  Object.values(plan.parts).reduce((sum, part) => sum + part, 0);

describe("the memory plan", () => {
  test("never exceeds the budget, and its parts add up, at any budget, context and thread count", () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 400 }),
        fc.integer({ min: 1, max: 200_000 }),
        fc.integer({ min: 1, max: 128 }),
        fc.integer({ min: 0, max: 5000 }),
        (tenths, contextTokens, threads, allLogits) => {
          const budgetBytes = tenths * 5e8;
          try {
            const plan = planMemory(input({ budgetBytes, contextTokens, threads, allLogits }));
            expect(plan.plannedBytes).toBeLessThanOrEqual(budgetBytes);
            expect(Math.abs(total(plan) - plan.plannedBytes)).toBeLessThan(1);
            expect(plan.chunk).toBeGreaterThanOrEqual(1);
            expect(plan.parts.logits).toBeGreaterThanOrEqual(allLogits * 163_840 * 4);
          } catch (error) {
            const { code, details } = error as { code: string; details: { needed: number; given: number } };
            expect(code).toBe("E_MEMORY");
            expect(details.given).toBe(budgetBytes);
            expect(details.needed).toBeGreaterThan(budgetBytes);
          }
        },
      ),
      { numRuns: 60 },
    );
  });

  test("what it says is needed is enough", () => {
    const needed = (() => {
      try {
        planMemory(input({ budgetBytes: 1e8 }));
      } catch (error) {
        return (error as { details: { needed: number } }).details.needed;
      }
      throw new Error("100 MB were enough");
    })();
    expect(planMemory(input({ budgetBytes: Math.ceil(needed) })).chunk).toBe(1);
    expect(() => planMemory(input({ budgetBytes: Math.floor(needed) - 1 }))).toThrow(/at least/);
  });

  test("the full model runs in 2.5 GB with a context of 4096", () => {
    expect(planMemory(input({ budgetBytes: 2.5e9 })).plannedBytes).toBeLessThanOrEqual(2.5e9);
  });

  test("at 16 GB a token reads 90 GB or less, the head included, from a trunk at 0.70 of its size", () => {
    const { sizes, ...rest } = input({ budgetBytes: 16e9 });
    const stored = sizes.storedBytes.map((bytes) => Math.ceil(bytes * 0.7));
    const packed = {
      ...sizes,
      storedBytes: stored,
      blockBytes: stored.map((bytes) => Math.ceil(bytes / 4096) * 4096),
    };
    const { readBytesPerToken: read } = planMemory({ ...rest, sizes: packed });
    expect(read.trunk + read.experts).toBeLessThanOrEqual(90e9);
  });

  test("pins trunk before it caches experts, evenly over the pass, and every byte of budget tells", () => {
    const small = planMemory(input({ budgetBytes: 8e9 }));
    expect(small.expertsCached).toBe(0);
    expect(small.pinnedBytes).toBeGreaterThan(5e9);
    const first = small.pinned.subarray(0, small.pinned.length / 2).reduce((sum, flag) => sum + flag, 0);
    const all = small.pinned.reduce((sum, flag) => sum + flag, 0);
    expect(Math.abs(first / all - 0.5)).toBeLessThan(0.01);
    const large = planMemory(input({ budgetBytes: 150e9 }));
    expect(large.pinnedBytes).toBe(large.trunkBytes);
    expect(large.expertsCached).toBeGreaterThan(1500);
    expect(large.plannedBytes).toBeGreaterThan(149.9e9);
    let reads = Number.POSITIVE_INFINITY;
    for (let gigabytes = 4; gigabytes <= 200; gigabytes += 4) {
      const { readBytesPerToken: read } = planMemory(input({ budgetBytes: gigabytes * 1e9 }));
      expect(read.trunk + read.experts).toBeLessThan(reads);
      reads = read.trunk + read.experts;
    }
  });
});
