import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { describeRatio } from "../src/compare.ts";
import { median, randomSource, rankTest, ratioInterval, shuffled, spread } from "../src/statistics.ts";

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

/** Every way to deal the values out to two sides, the first of them of `size`. */
function splits(values: readonly number[], size: number): [number[], number[]][] {
  if (size === 0) return [[[], [...values]]];
  if (values.length === size) return [[[...values], []]];
  const [head, ...tail] = values as [number, ...number[]];
  return [
    ...splits(tail, size - 1).map(([a, b]): [number[], number[]] => [[head, ...a], b]),
    ...splits(tail, size).map(([a, b]): [number[], number[]] => [a, [head, ...b]]),
  ];
}
const valuesOf = (runs: number) => Array.from({ length: 2 * runs }, (_, k) => 100 + k);

describe("rankTest", () => {
  it("is the share of orders that are as far apart, by counting", () => {
    // C(6,3) = 20, C(8,4) = 70, C(10,5) = 252: the two that do not overlap.
    expect(rankTest([1, 2, 3], [4, 5, 6])).toBeCloseTo(2 / 20, 12);
    expect(rankTest([8, 7, 6, 5], [1, 2, 3, 4])).toBeCloseTo(2 / 70, 12);
    // One pair in the other order has one way on each side more.
    expect(rankTest([1, 2, 3, 5], [4, 6, 7, 8])).toBeCloseTo(4 / 70, 12);
    expect(rankTest([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])).toBeCloseTo(2 / 252, 12);
    // Of four values two and two equal: six deals, two of which are apart; all equal, and every deal is alike.
    expect(rankTest([1, 1], [2, 2])).toBeCloseTo(2 / 6, 12);
    expect(rankTest([1, 1, 1], [1, 1, 1])).toBe(1);
  });
});

describe("ratioInterval", () => {
  it.each([
    // All orders of equal sides are as probable. Three against three: those 2 of 20 without overlap are not enough.
    [3, 0, 2, 20],
    // Four against four: 2 of 70, which is 2.9 %.
    [4, 2, 0, 70],
  ])("of all orders of %i against as many runs claims %i, and calls %i too few", (runs, claims, few, all) => {
    const verdicts = splits(valuesOf(runs), runs).map(([a, b]) => ratioInterval(a, b).verdict);
    expect(verdicts).toHaveLength(all);
    expect(verdicts.filter((verdict) => verdict === "difference")).toHaveLength(claims);
    expect(verdicts.filter((verdict) => verdict === "too few runs")).toHaveLength(few);
  });

  it("claims a difference in 5 % of equal sides at most, of five runs too", () => {
    const verdicts = splits(valuesOf(5), 5).map(([a, b]) => ratioInterval(a, b).verdict);
    expect(verdicts).toHaveLength(252);
    expect(verdicts.filter((verdict) => verdict === "difference").length).toBeLessThanOrEqual(252 / 20);
  });

  it("claims nothing inside the noise floor, whichever side is over the other", () => {
    const [a, b] = [
      [104, 105, 106, 107],
      [100, 101, 102, 103],
    ] as const;
    // 105.5 / 101.5 is 1.039.
    expect(ratioInterval(a, b, { noise: 0.039 }).verdict).toBe("difference");
    expect(ratioInterval(a, b, { noise: 0.04 }).verdict).toBe("no difference");
    expect(ratioInterval(b, a, { noise: 0.04 }).verdict).toBe("no difference");
    expect(ratioInterval(b, a, { noise: 0.039 }).verdict).toBe("difference");
  });

  it("is said with the reason", () => {
    const few = describeRatio(ratioInterval([50, 51, 52], [100, 101, 102]));
    expect(few).toBe("0.505 (0.490 to 0.520), too few runs to tell (3; at least 4)");
    const inside = ratioInterval([104, 105, 106, 107], [100, 101, 102, 103], { noise: 0.08 });
    expect(describeRatio(inside)).toMatch(
      /^no difference \(1\.\d+ to 1\.\d+\): inside the noise floor of 8\.0 %$/,
    );
    expect(describeRatio(ratioInterval([100, 101, 102], [100, 101, 102]))).toMatch(
      /^no difference \(0\.98. to 1\.02.\)$/,
    );
  });

  it("claims nothing when both sides are the same noise", () => {
    const interval = ratioInterval([10, 11, 9, 10.5], [10.2, 9.1, 10.8, 10]);
    expect(interval.noDifference).toBe(true);
  });

  it("sees a difference that is larger than the noise, and brackets it", () => {
    const interval = ratioInterval([5, 5.1, 4.9, 5.05], [10, 10.2, 9.8, 10.1]);
    expect(interval).toMatchObject({ noDifference: false, verdict: "difference", runs: 4 });
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
      const { low, high } = ratioInterval(draw(6), draw(8), { seed: i });
      if (low <= 0.75 && high >= 0.75) covered++;
    }
    expect(covered).toBeGreaterThanOrEqual(51);
  });
});
