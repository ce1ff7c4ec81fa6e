import { beforeAll, describe, expect, test } from "vitest";
import { instructionSets, type ModelOptions } from "../src/index.ts";
import { type PackedMiniature, packedMiniature } from "./miniature.ts";
import { type Continuation, continueWith } from "./reference.ts";

let miniature: PackedMiniature;
let ids: number[];
let expected: Continuation;

beforeAll(async () => {
  miniature = await packedMiniature();
  // Long enough for several chunks and more than one tile of keys.
  ids = Array.from({ length: 150 }, (_, i) => (i * 37 + 11) % 200);
  expected = await continueWith({ modelDir: miniature.dir, threads: 1, chunk: 128, isa: "scalar" }, ids, 6);
});

const same = async (options: Omit<ModelOptions, "modelDir">) => {
  const found = await continueWith({ modelDir: miniature.dir, ...options }, ids, 6);
  expect(found.generated).toEqual(expected.generated);
  expect(Buffer.from(found.logits.buffer).equals(Buffer.from(expected.logits.buffer))).toBe(true);
  expect(Buffer.from(found.last.buffer).equals(Buffer.from(expected.last.buffer))).toBe(true);
};

describe("the same bits whatever the", () => {
  test.each([1, 3, 7, 64, 128])("chunk: %i", (chunk) => same({ chunk }));
  test.each([1, 2, 3, 5])("threads: %i", (threads) => same({ threads }));
  test.each(instructionSets())("instruction set: %s", (isa) => same({ isa, chunk: 5 }));
  test.each(["bf16", "none"] as const)("codec: %s", (codec) =>
    same({ trunkDir: miniature.trunks[codec], chunk: 9 }),
  );
  test.each([1, 2, 3])("ring of blocks: %i", (ringBlocks) =>
    same({
      tuning: { ringBlocks, readers: 3, blockBytes: 4096, pace: "disk", expertsCached: 0 },
      trunkDir: miniature.trunks.bf16,
    }),
  );
  test.each(["disk", "memory"] as const)("pace of the disk: %s", async (pace) => {
    for (const blockBytes of [4096, 20_000]) await same({ tuning: { pace, blockBytes, expertsCached: 0 } });
    await same({ tuning: { pace, expertsCached: 5 }, trunkDir: miniature.trunks.bf16, chunk: 2 });
    await same({ tuning: { pace, expertsCached: 1 }, trunkDir: miniature.trunks.none, chunk: 50 });
  });
  test("reads being buffered", () => same({ tuning: { direct: false, blockBytes: 4096 } }));
  test("memory budget", async () => {
    const { Model } = await import("../src/index.ts");
    const plan = async (memory: number) => {
      const model = await Model.open({
        modelDir: miniature.dir,
        memory,
        contextTokens: 512,
        tuning: { blockBytes: 4096 },
      });
      await model.close();
      return model.plan;
    };
    const roomy = await plan(2e9);
    expect(roomy.pinnedBytes).toBe(roomy.trunkBytes);
    // From what must be, upward, in steps that end inside the trunk and inside the experts.
    const base = roomy.plannedBytes - roomy.parts.pinnedTrunk - roomy.parts.expertCache;
    for (const share of [0.1, 0.5, 0.9, 1.3]) {
      const memory = Math.ceil(base + share * roomy.parts.pinnedTrunk) + 8e6;
      await same({ memory, tuning: { blockBytes: 4096 } });
    }
  });
});
