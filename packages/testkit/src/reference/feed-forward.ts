import type { K3Config } from "@k3/checkpoint";
import { addScaled, linear, mapRows, type Rows, rmsNorm, sigmoid, tanh, zeroRows } from "./arithmetic.ts";
import type { Weights } from "./weights.ts";

/** SiTU-GLU: beta tanh(gate / beta) sigmoid(gate) times linearBeta tanh(up / linearBeta); the sigmoid sees the uncapped gate. */
function situGlu(config: K3Config, gate: Rows, up: Rows): Rows {
  const { situBeta, situLinearBeta } = config;
  return mapRows(gate, (g, t, i) => {
    const capped = situBeta * tanh(g / situBeta) * sigmoid(g);
    return capped * situLinearBeta * tanh(up[t]![i]! / situLinearBeta);
  });
}

/** A dense gated network whose matrices are `at` + gate_proj, up_proj and down_proj. */
export function dense(config: K3Config, weights: Weights, at: string, rows: Rows): Rows {
  const w = (name: string) => weights.tensor(`${at}${name}.weight`);
  return linear(situGlu(config, linear(rows, w("gate_proj")), linear(rows, w("up_proj"))), w("down_proj"));
}

/** Experts that one position was sent to, and how near the choice was. */
export interface Routing {
  experts: number[];
  shares: number[];
  /** Between the last chosen and the first refused expert, in selection scores; Infinity when all were chosen. */
  gap: number;
}

/**
 * Scores are sigmoids of the router's logits; the correction bias takes part in the choice only; ties go to the lower
 * index; shares are the unbiased scores over their sum.
 */
function route(config: K3Config, weights: Weights, at: string, rows: Rows): Routing[] {
  const bias = weights.tensor(`${at}gate.e_score_correction_bias`);
  return linear(rows, weights.tensor(`${at}gate.weight`)).map((logits) => {
    const scores = logits.map(sigmoid);
    const biased = scores.map((score, e) => score + bias[e]!);
    const order = Array.from(biased.keys()).sort((a, b) => biased[b]! - biased[a]! || a - b);
    const experts = order.slice(0, config.expertsPerToken);
    const refused = order[config.expertsPerToken];
    const sum = experts.reduce((total, e) => total + scores[e]!, 0);
    const divisor = config.moeRenormalize ? sum + 1e-20 : 1;
    return {
      experts,
      shares: experts.map((e) => (scores[e]! / divisor) * config.routedScalingFactor),
      gap: refused === undefined ? Number.POSITIVE_INFINITY : biased[experts.at(-1)!]! - biased[refused]!,
    };
  });
}

/** The latent mixture of experts: routed experts in the latent width, plus the shared expert at full width. */
export function moe(
  config: K3Config,
  weights: Weights,
  at: string,
  rows: Rows,
  onRoute?: (routing: Routing) => void,
): Rows {
  const inside = `${at}block_sparse_moe.`;
  const w = (name: string) => weights.tensor(`${inside}${name}.weight`);
  const latent = linear(rows, w("routed_expert_down_proj"));
  const mixed = zeroRows(rows.length, config.routedExpertHiddenSize);
  const routings = route(config, weights, inside, rows);
  // Each expert sees all its positions at once; every position adds up its experts in the order of their scores.
  const outputs: Rows[] = routings.map(() => []);
  for (const e of new Set(routings.flatMap(({ experts }) => experts))) {
    const part = (name: string) => w(`experts.${e}.${name}`);
    const at = routings.flatMap(({ experts }, t) => (experts.includes(e) ? [t] : []));
    const z = at.map((t) => latent[t]!);
    const y = linear(situGlu(config, linear(z, part("w1")), linear(z, part("w3"))), part("w2"));
    at.forEach((t, i) => {
      outputs[t]![routings[t]!.experts.indexOf(e)] = y[i]!;
    });
  }
  routings.forEach((routing, t) => {
    onRoute?.(routing);
    routing.shares.forEach((share, i) => {
      addScaled(mixed[t]!, outputs[t]![i]!, share);
    });
  });
  const normed = config.latentMoeUseNorm ? rmsNorm(mixed, w("routed_expert_norm"), config.rmsNormEps) : mixed;
  const routed = linear(normed, w("routed_expert_up_proj"));
  if (config.sharedExperts > 0) {
    const shared = dense(config, weights, `${inside}shared_experts.`, rows);
    for (let t = 0; t < rows.length; t++) addScaled(routed[t]!, shared[t]!, 1);
  }
  return routed;
}
