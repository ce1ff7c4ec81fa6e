import { openCheckpoint } from "@k3/checkpoint";
import { runAtOnce } from "@k3/stage";
import { Random } from "@k3/testkit";
import { openTrunk } from "@k3/trunk";
import { beforeAll, describe, expect, test } from "vitest";
import { loadNative } from "../src/loader.ts";
import type { NativeModel } from "../src/native.ts";
import { buildTables } from "../src/tables.ts";
import { packedMiniature } from "./miniature.ts";

const ROUNDS = process.env["K3_NIGHTLY"] === "1" ? 5000 : 150;
const SEED = Number(process.env["K3_SEED"] ?? 20261129);
let models: NativeModel[];

beforeAll(async () => {
  const { dir, trunks } = await packedMiniature();
  const checkpoint = await openCheckpoint(dir);
  models = [
    runAtOnce(buildTables(checkpoint, undefined, 4096)),
    runAtOnce(buildTables(checkpoint, await openTrunk(trunks.bf16))),
  ];
});

/** One number of one table replaced by another, near or far. */
function spoiled(model: NativeModel, random: Random): NativeModel {
  const copy = structuredClone(model);
  const arrays = [copy.tensors, copy.segments, copy.pieces, copy.pieceOffsets, copy.blocks, copy.roles];
  const all = [
    ...arrays,
    copy.experts.partBytes,
    copy.experts.offsets,
    copy.experts.files,
    copy.config.isMla,
    copy.config.isMoe,
  ];
  const array = all[random.below(all.length)]!;
  const at = random.below(array.length);
  const far = [
    0,
    1,
    2 ** 31,
    2 ** 32 - 1,
    2 ** 53,
    -1,
    Number.NaN,
    random.below(2 ** 32),
    random.below(1000),
  ];
  array[at] = random.below(2) === 0 ? array[at]! + random.below(9) - 4 : far[random.below(far.length)]!;
  if (random.below(4) === 0) {
    const fields = Object.keys(copy.config).filter((key) => typeof copy.config[key as "hidden"] === "number");
    copy.config[fields[random.below(fields.length)] as "hidden"] = far[random.below(far.length)]!;
  }
  return copy;
}

describe("tables that are wrong", () => {
  test("are refused, or harmless: nothing is read or written out of bounds", async () => {
    const addon = loadNative();
    const random = new Random(SEED);
    let refused = 0;
    for (let round = 0; round < ROUNDS; round++) {
      const model = spoiled(models[round % models.length]!, random);
      try {
        const engine = new addon.NativeEngine(model);
        await engine.prepare();
        const { blockBytes } = engine.sizes();
        const pinned = new Uint8Array(blockBytes.length);
        const counts = {
          threads: 2,
          chunk: 4,
          trunkReaders: 2,
          ringSlots: 3,
          expertReaders: 2,
          expertsCached: 3,
          expertsInFlight: 2,
        };
        const census = new Float32Array(0);
        engine.open({ ...counts, census, pinned, direct: true, pace: round % 3, isa: "" });
        await engine
          .forward(engine.createState(8), Int32Array.of(1, 2, 3), 1)
          .catch((error: { code: string }) => {
            expect(["E_DATA", "E_READ", "E_DEFECT"]).toContain(error.code);
          });
        engine.close();
      } catch (error) {
        refused++;
        expect((error as { code: string }).code).toMatch(/^E_/);
      }
    }
    expect(refused).toBeGreaterThan(ROUNDS / 3);
  }, 1_200_000);

  test.each([
    ["that is longer than its piece", 2048, 0],
    ["that is longer than its segment", 2048, 2048],
    ["that is shorter than its piece", 0, 2048],
  ])("a block %s is refused: it is read and copied whole", async (_, blockBytes, pieceBytes) => {
    const addon = loadNative();
    const model = structuredClone(models[0]!);
    // The first block that is one matrix's alone.
    const block = Array.from({ length: model.blocks.length / 8 }, (_, b) => b * 8).find(
      (at) => model.blocks[at + 1] === 1 && model.blocks[at + 3] === 1,
    )!;
    model.blocks[block + 4]! += blockBytes;
    model.pieces[model.blocks[block + 2]! * 3 + 1]! += pieceBytes;
    await expect(new addon.NativeEngine(model).prepare()).rejects.toMatchObject({
      code: "E_DEFECT",
      message: expect.stringMatching(/another size|does not fit/),
    });
  });

  test.each(["isMla", "isMoe"] as const)(
    "a %s that is neither 0 nor 1 is refused: it is counted by adding",
    (name) => {
      const addon = loadNative();
      const model = structuredClone(models[0]!);
      model.config[name][model.config[name].indexOf(1)] = 2;
      expect(() => new addon.NativeEngine(model)).toThrow(expect.objectContaining({ code: "E_DEFECT" }));
    },
  );
});
