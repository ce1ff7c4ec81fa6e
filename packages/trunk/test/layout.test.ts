import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { blockSegments, layoutBlocks, MAX_BLOCK_BYTES, type TrunkTensor, tensorRows } from "../src/index.ts";

const tensor = (
  name: string,
  shape: number[],
  layer: number | null,
  dtype: "BF16" | "F32" = "BF16",
): TrunkTensor => ({
  name,
  dtype,
  shape,
  layer,
});

const anyLayer = fc.array(
  fc.record({
    dtype: fc.constantFrom("BF16" as const, "F32" as const),
    shape: fc.oneof(
      fc.tuple(fc.integer({ min: 1, max: 3000 })),
      fc.tuple(fc.integer({ min: 1, max: 900 }), fc.integer({ min: 1, max: 900 })),
      fc.tuple(fc.integer({ min: 1, max: 900 }), fc.constant(1), fc.integer({ min: 1, max: 8 })),
    ),
  }),
  { minLength: 1, maxLength: 12 },
);
const anyModel = fc
  .array(anyLayer, { minLength: 1, maxLength: 4 })
  .map((layers) =>
    layers.flatMap((list, layer) =>
      list.map(({ dtype, shape }, i) =>
        tensor(`${layer}.${i}`, [...shape], layer === 3 ? null : layer, dtype),
      ),
    ),
  );

/** A cheap expect, for loops over many segments. */
function holds(condition: boolean, what: string): void {
  if (!condition) throw new Error(what);
}

describe("layoutBlocks", () => {
  it("puts every row of every tensor into exactly one segment, in order, inside its block", () => {
    fc.assert(
      fc.property(anyModel, fc.constantFrom(4096, 20_000, 1 << 16, 1 << 20), (tensors, blockBytes) => {
        const layout = layoutBlocks(tensors, { blockBytes });
        const next = tensors.map(() => 0);
        for (let b = 0; b < layout.blocks; b++) {
          const segments = blockSegments(layout, b);
          holds(segments.length > 0, "no block is empty");
          let end = 0;
          for (const { tensor: t, firstRow, rows, byteOffset, bytes } of segments) {
            holds(firstRow === next[t], "rows follow each other");
            next[t]! += rows;
            holds(bytes === rows * tensorRows(tensors[t]!).rowBytes, "bytes are those of the rows");
            holds(
              byteOffset % 64 === 0 && byteOffset >= end && byteOffset - end < 64,
              "segments are aligned and packed",
            );
            end = byteOffset + bytes;
          }
          holds(layout.rawBytes[b] === end, "a block ends with its last segment");
          holds(new Set(segments.map((s) => tensors[s.tensor]!.layer)).size === 1, "no block spans layers");
          holds(new Set(segments.map((s) => tensors[s.tensor]!.dtype)).size === 1, "no block mixes dtypes");
          const largestRow = Math.max(...segments.map((s) => tensorRows(tensors[s.tensor]!).rowBytes));
          holds(end <= Math.max(blockBytes, largestRow), "blocks are not larger than asked, but for one row");
        }
        expect(next).toEqual(tensors.map((t) => tensorRows(t).rows));
      }),
      { numRuns: 200 },
    );
  });

  it("needs no block before the blocks of the tensors that come first", () => {
    fc.assert(
      fc.property(anyModel, (tensors) => {
        const { segments } = layoutBlocks(tensors, { blockBytes: 1 << 16 });
        // A tensor may stand earlier than its turn (small ones are gathered), never later: when the first row of one
        // appears, every tensor given before it has begun already.
        const begun = new Set<number>();
        for (const t of segments.tensor) {
          const isSmall = tensorRows(tensors[t]!).rows * tensorRows(tensors[t]!).rowBytes <= 1 << 14;
          if (!isSmall && !begun.has(t))
            for (let before = 0; before < t; before++) holds(begun.has(before), `${before}`);
          begun.add(t);
        }
        expect(begun.size).toBe(tensors.length);
      }),
    );
  });

  it("cuts the released projections into near-megabyte blocks of whole tiles", () => {
    // [12288, 7168] BF16: a row is 14,336 bytes, 73 rows fit a megabyte, 72 are whole tiles of 8.
    const layout = layoutBlocks([tensor("q", [12288, 7168], 0)]);
    expect(layout.blocks).toBe(Math.ceil(12288 / 72));
    expect(layout.rawBytes[0]).toBe(72 * 14336);
  });

  it("gathers the small tensors of a layer where the first of them stood, by dtype", () => {
    const tensors = [
      tensor("norm", [8], 0),
      tensor("taps", [4, 1, 4], 0, "F32"),
      tensor("wide", [512, 512], 0),
      tensor("late", [8], 0),
      tensor("other layer", [8], 1),
    ];
    const layout = layoutBlocks(tensors);
    expect(
      [...Array(layout.blocks).keys()].map((b) => blockSegments(layout, b).map((s) => s.tensor)),
    ).toEqual([[0, 3], [1], [2], [4]]);
    expect(blockSegments(layout, 0).map((s) => s.byteOffset)).toEqual([0, 64]);
  });

  it("gives a row that is larger than a block a block of its own", () => {
    const layout = layoutBlocks([tensor("fat", [3, 10_000], 0)], { blockBytes: 4096 });
    expect([...layout.rawBytes]).toEqual([20_000, 20_000, 20_000]);
  });

  it("refuses what cannot be cut", () => {
    const over = MAX_BLOCK_BYTES / 2 + 1;
    for (const shape of [[0], [4, 0], [over], [2, over], [2 ** 33, 1], [1.5], [-1]]) {
      expect(() => layoutBlocks([tensor("bad", shape, 0)])).toThrow(/cannot be cut/);
    }
    expect(() => layoutBlocks([tensor("a", [1], 0), tensor("b", [1], 1), tensor("c", [1], 0)])).toThrow(
      /not together/,
    );
  });
});
