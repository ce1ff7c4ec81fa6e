// Functions of the reference pass that the language leaves to each engine's libm, made from IEEE additions,
// multiplications and divisions alone, so that the miniature has the same bytes on every machine.

/** Rows of numbers: one row per position. */
export type Rows = Float64Array[];

/** Rows of zeros over one buffer: typed arrays of their own are dear to allocate and to collect. */
export function zeroRows(count: number, width: number): Rows {
  const all = new Float64Array(count * width);
  return Array.from({ length: count }, (_, t) => all.subarray(t * width, (t + 1) * width));
}

/** Rows of the same shape with f(value, row, index) in place of each value. */
export function mapRows(rows: Rows, f: (value: number, t: number, i: number) => number): Rows {
  const result = zeroRows(rows.length, rows[0]!.length);
  for (let t = 0; t < rows.length; t++) {
    const from = rows[t]!;
    const to = result[t]!;
    for (let i = 0; i < from.length; i++) to[i] = f(from[i]!, t, i);
  }
  return result;
}

const LN2_HIGH = 0.6931471803691238;
const LN2_LOW = 1.9082149292705877e-10;
const RECIPROCALS = Float64Array.from({ length: 18 }, (_, n) => 1 / n);
const powerOfTwo = new Float64Array(1);
const powerWords = new Int32Array(powerOfTwo.buffer);

/** 2^k, exact, for -1022 <= k <= 1023. */
function exp2Integer(k: number): number {
  powerWords[0] = 0;
  powerWords[1] = (k + 1023) << 20;
  return powerOfTwo[0]!;
}

/** e^x, to about one unit in the last place: x = k ln 2 + r with |r| <= ln 2 / 2, and the Taylor sum of e^r. */
export function exp(x: number): number {
  if (Number.isNaN(x)) return x;
  if (x > 709.7) return Number.POSITIVE_INFINITY;
  if (x < -745) return 0;
  const k = Math.round(x / Math.LN2);
  const r = x - k * LN2_HIGH - k * LN2_LOW;
  let sum = 1;
  for (let n = 17; n >= 1; n--) sum = 1 + r * RECIPROCALS[n]! * sum;
  // Two steps, because 2^k itself may be below the smallest normal number.
  const half = Math.trunc(k / 2);
  return sum * exp2Integer(half) * exp2Integer(k - half);
}

export function sigmoid(x: number): number {
  if (x >= 0) return 1 / (1 + exp(-x));
  const e = exp(x);
  return e / (1 + e);
}

/** tanh x; near zero by Lambert's continued fraction x / (1 + x^2 / (3 + x^2 / (5 + ...))), which keeps the relative error small. */
export function tanh(x: number): number {
  const a = Math.abs(x);
  if (a < 0.5) {
    const square = x * x;
    let below = 19;
    for (let n = 17; n >= 1; n -= 2) below = n + square / below;
    return x / below;
  }
  const e = exp(-2 * a);
  return Math.sign(x) * ((1 - e) / (1 + e));
}

export function dot(a: Float64Array, b: Float64Array, bStart = 0): number {
  let s0 = 0;
  let s1 = 0;
  let s2 = 0;
  let s3 = 0;
  const n = a.length;
  let i = 0;
  for (; i + 4 <= n; i += 4) {
    s0 += a[i]! * b[bStart + i]!;
    s1 += a[i + 1]! * b[bStart + i + 1]!;
    s2 += a[i + 2]! * b[bStart + i + 2]!;
    s3 += a[i + 3]! * b[bStart + i + 3]!;
  }
  for (; i < n; i++) s0 += a[i]! * b[bStart + i]!;
  return s0 + s1 + (s2 + s3);
}

/**
 * y = W x for every row x; W is [outputs, inputs], row-major. Two outputs at a time, which halves the reads of x; each
 * sum is formed as `dot` forms it, so a row's result does not depend on its company.
 */
export function linear(rows: Rows, weight: Float64Array): Rows {
  const inputs = rows[0]!.length;
  const outputs = weight.length / inputs;
  const result = zeroRows(rows.length, outputs);
  const paired = inputs % 4 === 0 ? outputs - (outputs % 2) : 0;
  for (let o = 0; o < paired; o += 2) {
    const first = weight.subarray(o * inputs, (o + 1) * inputs);
    const second = weight.subarray((o + 1) * inputs, (o + 2) * inputs);
    for (let t = 0; t < rows.length; t++) dotPair(rows[t]!, first, second, result[t]!, o);
  }
  for (let o = paired; o < outputs; o++) {
    for (let t = 0; t < rows.length; t++) result[t]![o] = dot(rows[t]!, weight, o * inputs);
  }
  return result;
}

function dotPair(x: Float64Array, a: Float64Array, b: Float64Array, y: Float64Array, at: number): void {
  let a0 = 0;
  let a1 = 0;
  let a2 = 0;
  let a3 = 0;
  let b0 = 0;
  let b1 = 0;
  let b2 = 0;
  let b3 = 0;
  for (let i = 0; i < x.length; i += 4) {
    const x0 = x[i]!;
    const x1 = x[i + 1]!;
    const x2 = x[i + 2]!;
    const x3 = x[i + 3]!;
    a0 += x0 * a[i]!;
    a1 += x1 * a[i + 1]!;
    a2 += x2 * a[i + 2]!;
    a3 += x3 * a[i + 3]!;
    b0 += x0 * b[i]!;
    b1 += x1 * b[i + 1]!;
    b2 += x2 * b[i + 2]!;
    b3 += x3 * b[i + 3]!;
  }
  y[at] = a0 + a1 + (a2 + a3);
  y[at + 1] = b0 + b1 + (b2 + b3);
}

/** weight * x / sqrt(mean(x^2) + eps) over a slice of `values`, which is changed in place. */
export function rmsNormInPlace(values: Float64Array, weight: Float64Array, eps: number): void {
  const scale = 1 / Math.sqrt(dot(values, values) / values.length + eps);
  for (let i = 0; i < values.length; i++) values[i] = weight[i]! * (values[i]! * scale);
}

export function rmsNorm(rows: Rows, weight: Float64Array, eps: number): Rows {
  const result = mapRows(rows, (value) => value);
  for (const row of result) rmsNormInPlace(row, weight, eps);
  return result;
}

export function softmaxInPlace(values: Float64Array): void {
  let most = Number.NEGATIVE_INFINITY;
  for (const value of values) most = Math.max(most, value);
  let sum = 0;
  for (let i = 0; i < values.length; i++) {
    values[i] = exp(values[i]! - most);
    sum += values[i]!;
  }
  for (let i = 0; i < values.length; i++) values[i] = values[i]! / sum;
}

/** Adds `share` times `source` to `target`. */
export function addScaled(target: Float64Array, source: Float64Array, share: number, sourceStart = 0): void {
  for (let i = 0; i < target.length; i++) target[i] = target[i]! + share * source[sourceStart + i]!;
}

/** Multiplies by sigmoid(gate), element by element. */
export function gateInPlace(rows: Rows, gates: Rows): void {
  for (let t = 0; t < rows.length; t++) {
    const row = rows[t]!;
    for (let i = 0; i < row.length; i++) row[i] = row[i]! * sigmoid(gates[t]![i]!);
  }
}
