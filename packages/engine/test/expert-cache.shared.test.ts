import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { sharedDir, title } from "@k3/testkit";
import { expect, test } from "vitest";
import { type ExpertCachePolicy, type ExpertTrace, simulateExpertCache } from "../src/index.ts";

const shared = sharedDir();
const EXPERT_BYTES = 17_547_264;

const sizes = [4, 8, 16, 32] as const;

async function recordedTrace(): Promise<ExpertTrace> {
  const file = JSON.parse(await readFile(join(shared.path!, "data/released/expert-trace.json"), "utf8")) as {
    layers: Record<string, number[][]>;
  };
  const trace = Object.keys(file.layers)
    .map(Number)
    .sort((a, b) => a - b)
    .map((layer) => file.layers[layer]!);
  expect(trace).toHaveLength(92);
  return trace;
}

/** Percent of the requests that a cache of so many gigabytes answers. */
function share(
  trace: ExpertTrace,
  policy: ExpertCachePolicy,
  gigabytes: number,
  census?: ExpertTrace,
): number {
  const slots = Math.floor((gigabytes * 1e9) / EXPERT_BYTES);
  const { requests, hits } = simulateExpertCache(trace, policy, slots, census);
  return (100 * hits) / requests;
}

test.skipIf(shared.skip)(
  title("the released model's recorded routing: 5.9, 10.7, 19.5 and 33.5 %, an LRU nothing to 16 GB", shared),
  async () => {
    const trace = await recordedTrace();
    for (const [gigabytes, reached, bound] of [
      [4, 5.9, 13.8],
      [8, 10.7, 25.3],
      [16, 19.5, 35.8],
      [32, 33.5, 42.4],
    ] as const) {
      expect(share(trace, "k3", gigabytes)).toBeGreaterThanOrEqual(reached - 0.05);
      expect(share(trace, "belady", gigabytes)).toBeCloseTo(bound, 0);
      if (gigabytes <= 16) expect(share(trace, "lru", gigabytes)).toBe(0);
      else expect(share(trace, "k3", gigabytes)).toBeGreaterThan(share(trace, "lru", gigabytes));
    }
  },
);

// Tokens that the census has not seen: those of the other part of the recording.
test.skipIf(shared.skip).each([
  ["the second half, a census of the first", (token: number) => token >= 6],
  ["the first half, a census of the second", (token: number) => token < 6],
  ["every other token, a census of those between", (token: number) => token % 2 === 0],
] as const)(
  title("a census of other tokens of the recording helps at every size: %s", shared),
  async (name, replayed) => {
    const trace = await recordedTrace();
    const part = (of: (token: number) => boolean) =>
      trace.map((layer) => layer.filter((_, token) => of(token)));
    const tokens = part(replayed);
    const census = part((token) => !replayed(token));
    const rows = sizes.map((gigabytes) => ({
      gigabytes,
      without: share(tokens, "k3", gigabytes),
      with: share(tokens, "k3", gigabytes, census),
    }));
    const percent = (value: number) => value.toFixed(1);
    console.log(
      `${name}: ${rows.map((row) => `${row.gigabytes} GB ${percent(row.without)} -> ${percent(row.with)} %`).join(", ")}`,
    );
    for (const row of rows) expect(row.with).toBeGreaterThan(row.without);
  },
);
