/**
 * exp and ln from additions, multiplications and divisions only. JavaScript lets Math.exp and Math.log differ between engines and
 * versions; the four operations are IEEE 754 everywhere, so a seeded sampler draws the same tokens on every machine.
 */

/** ln 2 in two parts: the upper one has 21 zero bits at its end, so that it times a small integer is exact. */
const LN2_UPPER = 0.6931471803691238;
const LN2_LOWER = 1.9082149292705877e-10;
/** Below this exp(x) is no normal number; it counts as zero. */
const LOWEST = -708;
const HIGHEST = 709;
const EXP_TERMS = 13;
const LN_TERMS = 12;

const view = new DataView(new ArrayBuffer(8));

/**
 * e^x for x <= 709, relative error below 4e-16; 0 for x < -708. With x = k ln 2 + r, |r| <= ln 2 / 2, it is 2^k times the
 * Taylor polynomial of degree 13 of e^r.
 */
export function exp(x: number): number {
  if (Number.isNaN(x)) return x;
  if (x < LOWEST) return 0;
  if (x > HIGHEST) return Number.POSITIVE_INFINITY;
  const k = Math.floor(x * Math.LOG2E + 0.5);
  const r = x - k * LN2_UPPER - k * LN2_LOWER;
  let sum = 1;
  for (let n = EXP_TERMS; n >= 1; n--) sum = 1 + (sum * r) / n;
  view.setUint32(0, (k + 1023) * 2 ** 20);
  view.setUint32(4, 0);
  return sum * view.getFloat64(0);
}

/**
 * ln x for normal x > 0, absolute error below 4e-16 times max(1, |ln x|). With x = 2^e m, sqrt(1/2) < m <= sqrt 2, and s = (m - 1) / (m + 1), ln m is
 * 2 (s + s^3 / 3 + s^5 / 5 + ...).
 */
export function ln(x: number): number {
  view.setFloat64(0, x);
  const upper = view.getUint32(0);
  let exponent = (upper >>> 20) - 1023;
  view.setUint32(0, (upper & 0xfffff) | 0x3ff00000);
  let m = view.getFloat64(0);
  if (m > Math.SQRT2) {
    m /= 2;
    exponent += 1;
  }
  const s = (m - 1) / (m + 1);
  const square = s * s;
  let sum = 0;
  for (let n = LN_TERMS; n >= 1; n--) sum = (sum + 1 / (2 * n + 1)) * square;
  return exponent * LN2_UPPER + (2 * s + 2 * s * sum + exponent * LN2_LOWER);
}
