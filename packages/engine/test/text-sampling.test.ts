import { runAtOnce } from "@k3/stage";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { exp, ln } from "../src/text/float64-math.ts";
import { createSampler, type SamplerOptions, topLogprobs } from "../src/text/index.ts";
import { SplitMix64 } from "../src/text/split-mix.ts";

/** Probabilities 1/2, 1/4, 1/8, 1/8 as logits, with a constant that must not matter. */
const HALVES = Float32Array.from([0.5, 0.25, 0.125, 0.125], (p) => Math.log(p) + 3);

/** How often each token comes in 20,000 draws, as fractions. */
function frequencies(logits: Float32Array, options: SamplerOptions, history: number[] = []): number[] {
  const sampler = createSampler({ temperature: 1, seed: 42, ...options });
  const counts = new Array<number>(logits.length).fill(0);
  for (let i = 0; i < 20_000; i++) counts[sampler.next(logits, history).id]! += 1;
  return counts.map((count) => count / 20_000);
}

/** Five standard deviations of a fraction of 20,000 draws are at most 0.018. */
function expectFractions(found: number[], expected: number[]): void {
  expect(found).toHaveLength(expected.length);
  for (const [id, fraction] of expected.entries()) {
    if (fraction === 0) expect(found[id]).toBe(0);
    else expect(Math.abs(found[id]! - fraction)).toBeLessThan(0.018);
  }
}

describe("the generator", () => {
  test("known values of SplitMix64", () => {
    // Published test vectors of the algorithm for the seed 1234567, and the first value for the seed 0.
    const generator = new SplitMix64(1234567n);
    expect([1, 2, 3, 4, 5].map(() => generator.next())).toEqual([
      6457827717110365317n,
      3203168211198807973n,
      9817491932198370423n,
      4593380528125082431n,
      16408922859458223821n,
    ]);
    expect(new SplitMix64(0n).next()).toBe(0xe220a8397b1dcdafn);
  });

  test("goes on from a saved state", () => {
    const generator = new SplitMix64(5n);
    generator.next();
    const saved = generator.save();
    const following = [generator.next(), generator.next()];
    const other = new SplitMix64(0n);
    other.restore(saved);
    expect([other.next(), other.next()]).toEqual(following);
    expect(() => other.restore("xyz")).toThrow("not the state of a generator");
  });
});

describe("exp and ln", () => {
  test("agree with the platform's to 1e-15, and are exact where that is possible", () => {
    expect(exp(0)).toBe(1);
    expect(ln(1)).toBe(0);
    fc.assert(
      fc.property(fc.double({ min: -700, max: 700, noNaN: true }), (x) => {
        expect(Math.abs(exp(x) / Math.exp(x) - 1)).toBeLessThan(1e-15);
      }),
      { numRuns: 5000 },
    );
    fc.assert(
      fc.property(fc.double({ min: 1e-300, max: 1e300, noNaN: true }), (x) => {
        expect(Math.abs(ln(x) - Math.log(x))).toBeLessThanOrEqual(1e-15 * Math.max(1, Math.abs(Math.log(x))));
      }),
      { numRuns: 5000 },
    );
  });

  test("the ends of the range", () => {
    expect([exp(-709), exp(Number.NEGATIVE_INFINITY), exp(710)]).toEqual([0, 0, Number.POSITIVE_INFINITY]);
    expect(exp(Number.NaN)).toBeNaN();
  });

  test("constants of mathematics to one unit in the last place", () => {
    const known: [number, number][] = [
      [exp(1), Math.E],
      [exp(-1), 0.36787944117144233],
      [ln(10), Math.LN10],
      [ln(2), Math.LN2],
    ];
    for (const [found, value] of known)
      expect(Math.abs(found / value - 1)).toBeLessThanOrEqual(Number.EPSILON);
  });
});

describe("greedy", () => {
  test("the greatest logit, the lowest id among equals", () => {
    const greedy = createSampler();
    expect(greedy.next(Float32Array.of(1, 3, 2, 3), []).id).toBe(1);
    expect(greedy.next(Float32Array.of(Number.NEGATIVE_INFINITY, -5), []).id).toBe(1);
    expect(greedy.next(Float32Array.of(-0, 0), []).id).toBe(0);
  });

  test("the log-probability is the model's", () => {
    expect(createSampler().next(HALVES, []).logprob).toBeCloseTo(-Math.LN2, 6);
    expect(createSampler({ repeatPenalty: 9 }).next(HALVES, [0]).logprob).toBeCloseTo(Math.log(0.25), 6);
  });

  test("the penalty divides positive logits and multiplies negative ones, once per token", () => {
    const penalised = createSampler({ repeatPenalty: 2 });
    // 4 / 2 = 2 < 3, however often token 0 was said.
    expect(penalised.next(Float32Array.of(4, 3, 1), [0, 0, 0]).id).toBe(1);
    // -1 * 2 = -2 < -1.5
    expect(penalised.next(Float32Array.of(-1, -1.5), [0]).id).toBe(1);
    expect(penalised.next(Float32Array.of(-1, -2.5), [0]).id).toBe(0);
  });
});

describe("sampling", () => {
  test("the draws follow from the seed by hand", () => {
    // The vectors above over 2^64 are 0.350, 0.174, 0.532, 0.249, 0.890; tokens end at 0.5, 0.75, 0.875, 1.
    const sampler = createSampler({ temperature: 1, seed: 1234567 });
    expect([1, 2, 3, 4, 5].map(() => sampler.next(HALVES, []).id)).toEqual([0, 0, 1, 0, 3]);
  });

  test.each<[string, SamplerOptions, number[]]>([
    ["temperature 1", {}, [0.5, 0.25, 0.125, 0.125]],
    // Square roots of 4, 2, 1, 1 over their sum 2 + 1.41421 + 1 + 1 = 5.41421.
    ["temperature 2", { temperature: 2 }, [0.3694, 0.2612, 0.1847, 0.1847]],
    // Squares 16, 4, 1, 1 over 22.
    ["temperature 0.5", { temperature: 0.5 }, [0.7273, 0.1818, 0.0455, 0.0455]],
    ["top-p 0.7: the first two", { topP: 0.7 }, [2 / 3, 1 / 3, 0, 0]],
    ["top-p 0.8: of two equals the lower id", { topP: 0.8 }, [4 / 7, 2 / 7, 1 / 7, 0]],
    ["top-p 0.4: one", { topP: 0.4 }, [1, 0, 0, 0]],
    ["min-p 0.3: at least 0.15", { minP: 0.3 }, [2 / 3, 1 / 3, 0, 0]],
    ["min-p 1: only the greatest", { minP: 1 }, [1, 0, 0, 0]],
    // Min-p leaves 2/3 and 1/3; top-p 0.6 of those is the first.
    ["min-p before top-p", { minP: 0.3, topP: 0.6 }, [1, 0, 0, 0]],
    // Temperature first: at 0.5 the second has 4/16 of the first, below 0.3.
    ["temperature before min-p", { temperature: 0.5, minP: 0.3 }, [1, 0, 0, 0]],
  ])("%s", (_, options, expected) => {
    expectFractions(frequencies(HALVES, options), expected);
  });

  test("with a penalty", () => {
    // Logits 2 ln 2 and ln 2; the first halved by the penalty is equal to the second.
    const logits = Float32Array.of(2 * Math.LN2, Math.LN2);
    expectFractions(frequencies(logits, {}), [2 / 3, 1 / 3]);
    expectFractions(frequencies(logits, { repeatPenalty: 2 }, [0]), [0.5, 0.5]);
  });

  test("tokens of probability zero never come, at any setting", () => {
    const logits = Float32Array.of(Number.NEGATIVE_INFINITY, 0, -2000, 0);
    expectFractions(frequencies(logits, {}), [0, 0.5, 0, 0.5]);
    expectFractions(frequencies(logits, { topP: 0.999 }), [0, 0.5, 0, 0.5]);
  });

  test("a vocabulary of the released size", () => {
    const logits = new Float32Array(163_840).fill(0);
    logits[163_839] = Math.log(163_839);
    const sampler = createSampler({ temperature: 1, seed: 3 });
    const ids = Array.from({ length: 40 }, () => sampler.next(logits, []).id);
    // Half of the probability is in the last token, the other half spread evenly.
    const last = ids.filter((id) => id === 163_839).length;
    expect(last).toBeGreaterThan(8);
    expect(last).toBeLessThan(32);
    expect(new Set(ids).size).toBeGreaterThan(8);
  });

  test("saved and restored in the middle, the draws go on as they were", () => {
    const one = createSampler({ temperature: 1, seed: 2n ** 64n - 1n });
    one.next(HALVES, []);
    const state = one.saveState();
    const expected = Array.from({ length: 20 }, () => one.next(HALVES, []).id);
    const other = createSampler({ temperature: 1, seed: 0 });
    other.restoreState(state);
    expect(Array.from({ length: 20 }, () => other.next(HALVES, []).id)).toEqual(expected);
  });

  test("without a seed one is chosen, told, and gives the same draws again", () => {
    const one = createSampler({ temperature: 1 });
    const again = createSampler({ temperature: 1, seed: one.seed });
    const draws = (sampler: typeof one) => Array.from({ length: 50 }, () => sampler.next(HALVES, []).id);
    expect(draws(one)).toEqual(draws(again));
    expect(createSampler().seed).not.toBe(one.seed);
  });
});

describe("top log-probabilities", () => {
  test("in descending order, the lowest id first among equals", () => {
    const top = topLogprobs(HALVES, 4);
    expect(top.map(({ id }) => id)).toEqual([0, 1, 2, 3]);
    for (const [at, p] of [0.5, 0.25, 0.125, 0.125].entries())
      expect(top[at]!.logprob).toBeCloseTo(Math.log(p), 6);
  });

  test("probabilities of all tokens sum to one", () => {
    fc.assert(
      fc.property(
        fc.float32Array({ min: -50, max: 50, noNaN: true, minLength: 1, maxLength: 60 }),
        (logits) => {
          const all = topLogprobs(logits, logits.length);
          expect(all.reduce((sum, { logprob }) => sum + Math.exp(logprob), 0)).toBeCloseTo(1, 10);
          const sorted = [...logits.keys()].sort((a, b) => logits[b]! - logits[a]! || a - b);
          expect(all.map(({ id }) => id)).toEqual(sorted);
        },
      ),
    );
  });

  test.each([0, 5, 1.5, -1])("%s of 4 is refused", (k) => {
    expect(() => topLogprobs(HALVES, k)).toThrow(expect.objectContaining({ code: "E_USAGE" }) as Error);
  });
});

describe("refused", () => {
  test.each<[SamplerOptions, string]>([
    [{ temperature: -0.1 }, "temperature"],
    [{ temperature: Number.NaN }, "temperature"],
    [{ temperature: Number.POSITIVE_INFINITY }, "temperature"],
    [{ topP: 0 }, "topP"],
    [{ topP: 1.01 }, "topP"],
    [{ minP: -1 }, "minP"],
    [{ minP: 1.5 }, "minP"],
    [{ repeatPenalty: 0 }, "repeatPenalty"],
    [{ seed: -1 }, "seed"],
    [{ seed: 1.5 }, "seed"],
    [{ seed: 2 ** 53 }, "seed"],
    [{ seed: 2n ** 64n }, "seed"],
  ])("%o", (options, name) => {
    expect(() => createSampler(options)).toThrow(
      expect.objectContaining({
        code: "E_USAGE",
        message: expect.stringContaining(`${name} is`) as string,
      }) as Error,
    );
  });

  test.each<[string, Float32Array]>([
    ["not a number", Float32Array.of(1, Number.NaN)],
    ["not a number, first", Float32Array.of(Number.NaN, 1)],
    ["infinite", Float32Array.of(1, Number.POSITIVE_INFINITY)],
    ["all minus infinity", Float32Array.of(Number.NEGATIVE_INFINITY)],
    ["none", Float32Array.of()],
  ])("logits: %s", (_, logits) => {
    for (const temperature of [0, 1]) {
      expect(() => createSampler({ temperature, seed: 1 }).next(logits, [])).toThrow(
        expect.objectContaining({ code: "E_DATA" }) as Error,
      );
    }
  });

  test("a history beyond the logits", () => {
    expect(() => createSampler({ repeatPenalty: 2 }).next(HALVES, [4])).toThrow("id 4 of the history");
  });
});

test("draws that overlap take their numbers in the order in which they began", () => {
  const options = { temperature: 1, seed: 5 };
  const alone = createSampler(options);
  const expected = [alone.next(HALVES, []).id, alone.next(HALVES, []).id];
  const shared = createSampler(options);
  const [first, second] = [shared.nextSteps(HALVES, []), shared.nextSteps(HALVES, [])];
  first.next();
  second.next();
  const late = runAtOnce(second);
  expect([runAtOnce(first).id, late.id]).toEqual(expected);
});
