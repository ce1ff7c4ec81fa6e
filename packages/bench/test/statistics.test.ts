import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { median, randomSource, ratioInterval, shuffled, spread } from "../src/statistics.ts";

describe("median and spread", () => {
  it("of samples worked by hand", () => {
    expect(median([3, 1, 2])).toBe(2);
    expect(median([4, 1, 3, 2])).toBe(2.5);
    expect(spread([9, 10, 11])).toBeCloseTo(0.1, 12);
    expect(() => median([])).toThrowError(expect.objectContaining({ code: "E_DEFECT" }));
  });
});

describe("randomSource", () => {
  it("is SplitMix64", () => {
    // First outputs for seed 1234567, from the published reference implementation; ours keeps the top 53 bits.
    const expected = [6457827717110365317n, 3203168211198807973n, 9817491932198370423n];
    const random = randomSource(1234567);
    expect(expected.map(() => BigInt(random() * 2 ** 53))).toEqual(expected.map((value) => value >> 11n));
  });

  it("shuffles without losing anything", () => {
    fc.assert(
      fc.property(fc.array(fc.integer()), fc.nat(), (items, seed) => {
        expect([...shuffled(items, randomSource(seed))].sort()).toEqual([...items].sort());
      }),
    );
  });
});

describe("ratioInterval", () => {
  it("claims nothing when both sides are the same noise", () => {
    const interval = ratioInterval([10, 11, 9, 10.5], [10.2, 9.1, 10.8, 10]);
    expect(interval.noDifference).toBe(true);
  });

  it("sees a difference that is larger than the noise, and brackets it", () => {
    const interval = ratioInterval([5, 5.1, 4.9, 5.05], [10, 10.2, 9.8, 10.1]);
    expect(interval).toMatchObject({ noDifference: false });
    expect(interval.low).toBeLessThanOrEqual(0.5);
    expect(interval.high).toBeGreaterThanOrEqual(0.49);
  });

  it("refuses fewer than three runs", () => {
    expect(() => ratioInterval([1, 2], [1, 2, 3])).toThrowError(expect.objectContaining({ code: "E_USAGE" }));
  });

  it("covers the true ratio in about 95 % of cases (percentile bootstrap of medians is wider, never much narrower)", () => {
    const random = randomSource(5);
    const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
    let covered = 0;
    for (let i = 0; i < 60; i++) {
      const draw = (mean: number) => Array.from({ length: 12 }, () => mean * (1 + 0.05 * normal()));
      const { low, high } = ratioInterval(draw(6), draw(8), i);
      if (low <= 0.75 && high >= 0.75) covered++;
    }
    expect(covered).toBeGreaterThanOrEqual(51);
  });
});
