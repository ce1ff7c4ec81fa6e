import type { K3Config } from "@k3/checkpoint";
import {
  addScaled,
  dot,
  gateInPlace,
  linear,
  type Rows,
  rmsNorm,
  softmaxInPlace,
  zeroRows,
} from "./arithmetic.ts";
import type { Weights } from "./weights.ts";

/** Keys [heads, nope + rope] and values [heads, v] of every position so far. */
export interface MlaState {
  keys: Rows;
  values: Rows;
}

/**
 * Multi-head latent attention without positions, over the positions of `rows` (normed inputs) and all before them,
 * in the expanded form: keys and values are unfolded from the latent, the shared 'rope' part is appended unrotated.
 */
export function mla(
  config: K3Config,
  weights: Weights,
  at: string,
  rows: Rows,
  state: MlaState,
  loraNormEps: number,
): Rows {
  const {
    heads,
    kvLoraRank,
    qkNopeHeadDim: nope,
    qkRopeHeadDim: rope,
    vHeadDim: vDim,
    outputGate,
  } = config.mla;
  const w = (name: string) => weights.tensor(`${at}self_attn.${name}`);

  const qLatent = rmsNorm(linear(rows, w("q_a_proj.weight")), w("q_a_layernorm.weight"), loraNormEps);
  const queries = linear(qLatent, w("q_b_proj.weight"));
  const compressed = linear(rows, w("kv_a_proj_with_mqa.weight"));
  const latents = rmsNorm(
    compressed.map((row) => row.subarray(0, kvLoraRank)),
    w("kv_a_layernorm.weight"),
    loraNormEps,
  );
  const unfolded = linear(latents, w("kv_b_proj.weight"));
  const before = state.keys.length;
  for (let t = 0; t < rows.length; t++) {
    const key = new Float64Array(heads * (nope + rope));
    const value = new Float64Array(heads * vDim);
    for (let h = 0; h < heads; h++) {
      const from = h * (nope + vDim);
      key.set(unfolded[t]!.subarray(from, from + nope), h * (nope + rope));
      key.set(compressed[t]!.subarray(kvLoraRank), h * (nope + rope) + nope);
      value.set(unfolded[t]!.subarray(from + nope, from + nope + vDim), h * vDim);
    }
    state.keys.push(key);
    state.values.push(value);
  }

  const scale = 1 / Math.sqrt(nope + rope);
  const out = zeroRows(rows.length, heads * vDim);
  for (let t = 0; t < rows.length; t++) {
    for (let h = 0; h < heads; h++) {
      const query = queries[t]!.subarray(h * (nope + rope), (h + 1) * (nope + rope));
      const shares = new Float64Array(before + t + 1);
      for (let s = 0; s < shares.length; s++)
        shares[s] = dot(query, state.keys[s]!, h * (nope + rope)) * scale;
      softmaxInPlace(shares);
      const target = out[t]!.subarray(h * vDim, (h + 1) * vDim);
      for (let s = 0; s < shares.length; s++) addScaled(target, state.values[s]!, shares[s]!, h * vDim);
    }
  }
  if (outputGate) gateInPlace(out, linear(rows, w("g_proj.weight")));
  return linear(out, w("o_proj.weight"));
}
