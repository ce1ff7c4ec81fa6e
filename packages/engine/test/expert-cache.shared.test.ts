import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { sharedDir, title } from "@k3/testkit";
import { expect, test } from "vitest";
import { type ExpertTrace, simulateExpertCache } from "../src/index.ts";

const shared = sharedDir();
const EXPERT_BYTES = 17_547_264;

test.skipIf(shared.skip)(
  title("the released model's recorded routing: 5.9, 10.7, 19.5 and 33.5 %, an LRU nothing to 16 GB", shared),
  async () => {
    const file = JSON.parse(
      await readFile(join(shared.path!, "data/released/expert-trace.json"), "utf8"),
    ) as {
      layers: Record<string, number[][]>;
    };
    const trace: ExpertTrace = Object.keys(file.layers)
      .map(Number)
      .sort((a, b) => a - b)
      .map((layer) => file.layers[layer]!);
    expect(trace).toHaveLength(92);
    const share = (policy: "lru" | "k3" | "belady", gigabytes: number) => {
      const { requests, hits } = simulateExpertCache(
        trace,
        policy,
        Math.floor((gigabytes * 1e9) / EXPERT_BYTES),
      );
      return (100 * hits) / requests;
    };
    for (const [gigabytes, reached, bound] of [
      [4, 5.9, 13.8],
      [8, 10.7, 25.3],
      [16, 19.5, 35.8],
      [32, 33.5, 42.4],
    ] as const) {
      expect(share("k3", gigabytes)).toBeGreaterThanOrEqual(reached - 0.05);
      expect(share("belady", gigabytes)).toBeCloseTo(bound, 0);
      if (gigabytes <= 16) expect(share("lru", gigabytes)).toBe(0);
      else expect(share("k3", gigabytes)).toBeGreaterThan(share("lru", gigabytes));
    }
  },
);
