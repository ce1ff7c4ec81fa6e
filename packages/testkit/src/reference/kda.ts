import type { K3Config } from "@k3/checkpoint";
import { dot, exp, gateInPlace, linear, type Rows, rmsNormInPlace, sigmoid } from "./arithmetic.ts";
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
    return rows.map((_, t) =>
      Float64Array.from({ length: heads * dim }, (_, channel) => {
        let y = 0;
        for (let j = 0; j < convKernel; j++) y += inputs[t + j]![channel]! * taps[channel * convKernel + j]!;
        return y * sigmoid(y);
      }),
    );
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

  const out = rows.map(() => new Float64Array(heads * dim));
  for (let h = 0; h < heads; h++) {
    const rate = exp(aLog[h]!);
    const from = h * dim;
    const S = state.matrix.subarray(from * dim, (from + dim) * dim);
    for (let t = 0; t < rows.length; t++) {
      const qh = unit(q[t]!.subarray(from, from + dim));
      const kh = unit(k[t]!.subarray(from, from + dim));
      const vh = v[t]!.subarray(from, from + dim);
      const write = sigmoid(beta[t]![h]!);
      const read = new Float64Array(dim);
      for (let i = 0; i < dim; i++) {
        const alpha = exp(gateLowerBound * sigmoid(rate * (decay[t]![from + i]! + dtBias[from + i]!)));
        for (let j = 0; j < dim; j++) {
          S[i * dim + j] = S[i * dim + j]! * alpha;
          read[j] = read[j]! + S[i * dim + j]! * kh[i]!;
        }
      }
      const o = out[t]!.subarray(from, from + dim);
      for (let i = 0; i < dim; i++) {
        for (let j = 0; j < dim; j++) {
          S[i * dim + j] = S[i * dim + j]! + kh[i]! * (write * (vh[j]! - read[j]!));
          o[j] = o[j]! + S[i * dim + j]! * (qh[i]! * queryScale);
        }
      }
      rmsNormInPlace(o, oNorm, config.rmsNormEps);
    }
  }
  gateInPlace(out, linear(rows, w("g_proj.weight")));
  return linear(out, w("o_proj.weight"));
}

/** x / sqrt(sum x^2 + 1e-6): the epsilon is added to the sum, not to a mean. */
function unit(x: Float64Array): Float64Array {
  const scale = 1 / Math.sqrt(dot(x, x) + 1e-6);
  return x.map((value) => value * scale);
}
