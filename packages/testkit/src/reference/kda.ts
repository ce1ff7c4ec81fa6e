import type { K3Config } from "@k3/checkpoint";
import { dot, exp, gateInPlace, linear, type Rows, rmsNormInPlace, sigmoid, zeroRows } from "./arithmetic.ts";
import type { Weights } from "./weights.ts";

/** What a KDA layer carries from one position to the next. */
export interface KdaState {
  /** The last convKernel - 1 inputs of each convolution, before it. */
  taps: Record<"q" | "k" | "v", Rows>;
  /** One [key][value] matrix per head. */
  matrix: Float64Array;
}

export function newKdaState({ kda }: K3Config): KdaState {
  const zeros = () =>
    Array.from({ length: kda.convKernel - 1 }, () => new Float64Array(kda.heads * kda.headDim));
  return {
    taps: { q: zeros(), k: zeros(), v: zeros() },
    matrix: new Float64Array(kda.heads * kda.headDim * kda.headDim),
  };
}

/**
 * Kimi Delta Attention over the positions of `rows` (normed inputs), in the sequential form: per head the state
 * decays (S = diag(alpha) S), is read (u = S^T k), written (S += k (beta (v - u))^T) and read out (o = S^T q).
 */
export function kda(config: K3Config, weights: Weights, at: string, rows: Rows, state: KdaState): Rows {
  const { heads, headDim: dim, convKernel, gateLowerBound } = config.kda;
  const w = (name: string) => weights.tensor(`${at}self_attn.${name}`);

  const convolved = (which: "q" | "k" | "v"): Rows => {
    const inputs = [...state.taps[which], ...linear(rows, w(`${which}_proj.weight`))];
    const taps = w(`${which}_conv1d.weight`);
    state.taps[which] = inputs.slice(inputs.length - (convKernel - 1));
    const out = zeroRows(rows.length, heads * dim);
    for (let t = 0; t < rows.length; t++) convolve(inputs.slice(t, t + convKernel), taps, out[t]!);
    return out;
  };
  const q = convolved("q");
  const k = convolved("k");
  const v = convolved("v");
  const beta = linear(rows, w("b_proj.weight"));
  const decay = linear(linear(rows, w("f_a_proj.weight")), w("f_b_proj.weight"));
  const aLog = w("A_log");
  const dtBias = w("dt_bias");
  const oNorm = w("o_norm.weight");
  const queryScale = 1 / Math.sqrt(dim);

  const out = zeroRows(rows.length, heads * dim);
  const read = new Float64Array(dim);
  const alpha = new Float64Array(dim);
  for (let h = 0; h < heads; h++) {
    const rate = exp(aLog[h]!);
    const from = h * dim;
    const matrix = state.matrix.subarray(from * dim, (from + dim) * dim);
    const head = (rows: Rows, t: number) => rows[t]!.subarray(from, from + dim);
    for (let t = 0; t < rows.length; t++) {
      for (let i = 0; i < dim; i++) {
        alpha[i] = exp(gateLowerBound * sigmoid(rate * (decay[t]![from + i]! + dtBias[from + i]!)));
      }
      const key = unit(head(k, t));
      decayAndRead(matrix, alpha, key, read);
      const write = sigmoid(beta[t]![h]!);
      const change = head(v, t).map((value, j) => write * (value - read[j]!));
      const query = unit(head(q, t)).map((value) => value * queryScale);
      writeAndReadOut(matrix, key, change, query, head(out, t));
      rmsNormInPlace(head(out, t), oNorm, config.rmsNormEps);
    }
  }
  gateInPlace(out, linear(rows, w("g_proj.weight")));
  return linear(out, w("o_proj.weight"));
}

/** y[channel] = SiLU(sum over j of taps[channel][j] * inputs[j][channel]); the last input is the present one. */
function convolve(inputs: Rows, taps: Float64Array, out: Float64Array): void {
  const kernel = inputs.length;
  for (let channel = 0; channel < out.length; channel++) {
    let y = 0;
    for (let j = 0; j < kernel; j++) y += inputs[j]![channel]! * taps[channel * kernel + j]!;
    out[channel] = y * sigmoid(y);
  }
}

/** S = diag(alpha) S, then read = S^T key. */
function decayAndRead(S: Float64Array, alpha: Float64Array, key: Float64Array, read: Float64Array): void {
  const dim = key.length;
  read.fill(0);
  for (let i = 0; i < dim; i++) {
    const factor = alpha[i]!;
    const component = key[i]!;
    for (let j = 0, at = i * dim; j < dim; j++, at++) {
      const decayed = S[at]! * factor;
      S[at] = decayed;
      read[j] = read[j]! + decayed * component;
    }
  }
}

/** S = S + key change^T, then out = S^T query. */
function writeAndReadOut(
  S: Float64Array,
  key: Float64Array,
  change: Float64Array,
  query: Float64Array,
  out: Float64Array,
): void {
  const dim = key.length;
  for (let i = 0; i < dim; i++) {
    const component = key[i]!;
    const asked = query[i]!;
    for (let j = 0, at = i * dim; j < dim; j++, at++) {
      const written = S[at]! + component * change[j]!;
      S[at] = written;
      out[j] = out[j]! + written * asked;
    }
  }
}

/** x / sqrt(sum x^2 + 1e-6): the epsilon is added to the sum, not to a mean. */
function unit(x: Float64Array): Float64Array {
  const scale = 1 / Math.sqrt(dot(x, x) + 1e-6);
  return x.map((value) => value * scale);
}
