import fc from "fast-check";
import { expect, test } from "vitest";
import { decodeMxfp4, Random } from "../src/index.ts";
import { bf16Bits, mxfp4Tensors } from "../src/miniature/encode.ts";
import { dot, exp, linear, sigmoid, tanh } from "../src/reference/arithmetic.ts";
import { e8m0, widen } from "../src/reference/weights.ts";

const near = (value: number, expected: number, units: number) =>
  expect(Math.abs(value - expected)).toBeLessThanOrEqual(Math.abs(expected) * units * Number.EPSILON);

test("exp, tanh and sigmoid agree with the platform's to a few units in the last place", () => {
  fc.assert(
    fc.property(fc.double({ min: -700, max: 700, noNaN: true }), (x) => {
      near(exp(x), Math.exp(x), 4);
    }),
    { numRuns: 3000 },
  );
  fc.assert(
    fc.property(fc.double({ min: -30, max: 30, noNaN: true }), (x) => {
      near(tanh(x), Math.tanh(x), 6);
      near(sigmoid(x), 1 / (1 + Math.exp(-x)), 6);
    }),
    { numRuns: 3000 },
  );
  expect([exp(0), exp(1000), exp(-1000), tanh(0), tanh(50), tanh(-50)]).toEqual([1, Infinity, 0, 0, 1, -1]);
});

test("a row's product does not depend on the rows beside it", () => {
  const random = new Random(3);
  const weight = Float64Array.from({ length: 12 * 7 }, () => random.normal());
  const rows = Array.from({ length: 5 }, () => Float64Array.from({ length: 12 }, () => random.normal()));
  const together = linear(rows, weight);
  rows.forEach((row, t) => {
    expect(linear([row], weight)[0]).toEqual(together[t]);
    expect(together[t]![6]).toBe(dot(row, weight.subarray(72, 84)));
  });
});

test("BF16 rounds to nearest, ties to even", () => {
  // 1 + 2^-8 lies between 1 (0x3f80) and 1 + 2^-7 (0x3f81); 1 + 3 * 2^-8 between 0x3f81 and 0x3f82.
  expect(bf16Bits(1)).toBe(0x3f80);
  expect(bf16Bits(1 + 2 ** -8)).toBe(0x3f80);
  expect(bf16Bits(1 + 3 * 2 ** -8)).toBe(0x3f82);
  expect(bf16Bits(1 + 2 ** -8 + 2 ** -20)).toBe(0x3f81);
  expect(bf16Bits(-2)).toBe(0xc000);
  const bytes = new Uint8Array([0x81, 0x3f, 0x00, 0xc0]);
  expect([...widen("BF16", bytes, "x")]).toEqual([1 + 2 ** -7, -2]);
});

test("MXFP4: the low nibble is the even column, scales are powers of two, every code has its value", () => {
  const packed = Uint8Array.from({ length: 16 }, (_, i) => (i < 8 ? (2 * i) | ((2 * i + 1) << 4) : 0));
  const values = decodeMxfp4(packed, Uint8Array.of(128));
  const magnitudes = [0, 1, 2, 3, 4, 6, 8, 12];
  expect([...values.subarray(0, 16)]).toEqual([...magnitudes, ...magnitudes.map((m) => -m)]);
  expect([e8m0(0), e8m0(127), e8m0(130), e8m0(255)]).toEqual([2 ** -127, 1, 8, Number.NaN]);
});

test("what MXFP4 stores lies within its step of what was given", () => {
  const random = new Random(9, "mxfp4");
  const given: number[] = [];
  const { packed, scale } = mxfp4Tensors(4, 64, () => {
    given.push(random.normal());
    return given.at(-1)!;
  });
  const stored = decodeMxfp4(packed.bytes, scale.bytes);
  given.forEach((value, i) => {
    // Steps grow from 0.5 to 2 scale units; the cut from 8 to 6 is the largest error.
    expect(Math.abs(stored[i]! - value)).toBeLessThan(2 * e8m0(scale.bytes[i >> 5]!));
  });
});

test("the random stream is pinned", () => {
  const random = new Random(1, "pinned");
  expect([random.uint32(), random.uint32(), random.uint32()]).toEqual([2742915498, 991306331, 2553004483]);
});
