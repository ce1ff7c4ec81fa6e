import { type K3Config, readConfig } from "@k3/checkpoint";
import {
  addScaled,
  dot,
  linear,
  mapRows,
  type Rows,
  rmsNorm,
  softmaxInPlace,
  zeroRows,
} from "./arithmetic.ts";
import { dense, moe, type Routing } from "./feed-forward.ts";
import { type KdaState, kda, newKdaState } from "./kda.ts";
import { type MlaState, mla } from "./mla.ts";
import { readWeights, type Weights } from "./weights.ts";

const PREFIX = "language_model.model.";

export interface ReferenceOptions {
  /** Epsilon of the two norms inside MLA; Moonshot's class default, not rms_norm_eps. */
  loraNormEps?: number;
  /** Only the first so many layers, then the model's own end. */
  layers?: number;
  /** Told where each position goes, layer by layer, positions in order. */
  onRoute?: (layer: number, routing: Routing) => void;
}

/** What a sequence carries: one entry per layer. */
export interface ReferenceState {
  layers: (KdaState | MlaState)[];
}

export interface Generation {
  ids: number[];
  /** Between the greedy token's logit and the next one's, the smallest of all steps. */
  smallestMargin: number;
}

/**
 * The forward pass of Kimi K3's language model in float64: plain, slow, for small checkpoints. It is the yardstick
 * for engines and the teacher of the miniature, and shares no code with the engine.
 */
export class ReferenceModel {
  readonly config: K3Config;
  readonly #weights: Weights;
  readonly #layers: number;
  readonly #loraNormEps: number;
  readonly #onRoute: ReferenceOptions["onRoute"];
  /** Smallest distance between the last chosen and the first refused expert, over everything computed so far. */
  smallestRouterGap = Number.POSITIVE_INFINITY;

  constructor(config: K3Config, weights: Weights, options: ReferenceOptions = {}) {
    this.config = config;
    this.#weights = weights;
    this.#layers = Math.min(options.layers ?? config.layers, config.layers);
    this.#loraNormEps = options.loraNormEps ?? 1e-6;
    this.#onRoute = options.onRoute;
  }

  /** Opens a checkpoint directory, all of it in memory. Throws as readConfig does. */
  static async open(dir: string, options: ReferenceOptions = {}): Promise<ReferenceModel> {
    return new ReferenceModel((await readConfig(dir)).config, await readWeights(dir), options);
  }

  newState(): ReferenceState {
    const { config } = this;
    const layers = config.attention
      .slice(0, this.#layers)
      .map((kind) => (kind === "kda" ? newKdaState(config) : { keys: [], values: [] }));
    return { layers };
  }

  /**
   * The final normed hidden state [hidden] of every position of `ids`, which follow what `state` has seen. `onLayer`
   * gets the running residual sum [position][hidden] after each layer.
   */
  hidden(
    ids: readonly number[],
    state = this.newState(),
    onLayer?: (layer: number, residual: Rows) => void,
  ): Rows {
    const { config } = this;
    const eps = config.rmsNormEps;
    const w = (name: string) => this.#weights.tensor(PREFIX + name);
    const embedding = w("embed_tokens.weight");
    let sum: Rows = ids.map((id) => {
      if (!(id >= 0 && id < config.vocabSize))
        throw new RangeError(`token id ${id} is outside the vocabulary`);
      return embedding.slice(id * config.hiddenSize, (id + 1) * config.hiddenSize);
    });
    const blocks: Rows[] = [];
    for (let layer = 0; layer < this.#layers; layer++) {
      const at = `layers.${layer}.`;
      const full = PREFIX + at;
      const attended = blocks.length === 0 ? sum : this.#mix(blocks, sum, `${at}self_attention_res`);
      const closes = layer % config.attnResBlockSize === 0;
      if (closes) blocks.push(sum);
      const x = rmsNorm(attended, w(`${at}input_layernorm.weight`), eps);
      const carried = state.layers[layer]!;
      const attention =
        config.attention[layer] === "kda"
          ? kda(config, this.#weights, full, x, carried as KdaState)
          : mla(config, this.#weights, full, x, carried as MlaState, this.#loraNormEps);
      sum = closes ? attention : added(sum, attention);
      const y = rmsNorm(
        this.#mix(blocks, sum, `${at}mlp_res`),
        w(`${at}post_attention_layernorm.weight`),
        eps,
      );
      const forward =
        config.feedForward[layer] === "dense"
          ? dense(config, this.#weights, `${full}mlp.`, y)
          : moe(config, this.#weights, full, y, (routing) => {
              this.smallestRouterGap = Math.min(this.smallestRouterGap, routing.gap);
              this.#onRoute?.(layer, routing);
            });
      sum = added(sum, forward);
      onLayer?.(layer, sum);
    }
    return rmsNorm(this.#mix(blocks, sum, "output_attn_res"), w("norm.weight"), eps);
  }

  /** Logits [vocabulary] of every position of `ids`. */
  logits(ids: readonly number[], state = this.newState()): Rows {
    return linear(this.hidden(ids, state), this.#weights.tensor("language_model.lm_head.weight"));
  }

  /** The `count` greedy tokens after `ids` (the lower id at a tie), stopping after one of `endIds`. */
  generate(ids: readonly number[], count: number, endIds: readonly number[] = []): Generation {
    const state = this.newState();
    const head = this.#weights.tensor("language_model.lm_head.weight");
    const generated: number[] = [];
    let smallestMargin = Number.POSITIVE_INFINITY;
    let next = ids;
    while (generated.length < count) {
      const last = this.hidden(next, state).at(-1)!;
      const { best, margin } = leading(linear([last], head)[0]!);
      smallestMargin = Math.min(smallestMargin, margin);
      generated.push(best);
      if (endIds.includes(best)) break;
      next = [best];
    }
    return { ids: generated, smallestMargin };
  }

  /** Block attention residual: a softmax over normalised keys weighs the raw sources, position by position. */
  #mix(blocks: readonly Rows[], sum: Rows, name: string): Rows {
    const norm = this.#weights.tensor(`${PREFIX}${name}_norm.weight`);
    const proj = this.#weights.tensor(`${PREFIX}${name}_proj.weight`);
    const fold = norm.map((value, i) => value * proj[i]!);
    const sources = [...blocks, sum];
    const out = zeroRows(sum.length, this.config.hiddenSize);
    for (let t = 0; t < sum.length; t++) {
      const shares = Float64Array.from(sources, (rows) => {
        const row = rows[t]!;
        return dot(row, fold) / Math.sqrt(dot(row, row) / row.length + this.config.rmsNormEps);
      });
      softmaxInPlace(shares);
      sources.forEach((rows, i) => {
        addScaled(out[t]!, rows[t]!, shares[i]!);
      });
    }
    return out;
  }
}

const added = (a: Rows, b: Rows): Rows => mapRows(a, (value, t, i) => value + b[t]![i]!);

/** The index of the largest value (the lowest at a tie), and how far it leads. */
export function leading(values: Float64Array): { best: number; margin: number } {
  let best = 0;
  let second = Number.NEGATIVE_INFINITY;
  for (let i = 1; i < values.length; i++) {
    if (values[i]! > values[best]!) {
      second = values[best]!;
      best = i;
    } else second = Math.max(second, values[i]!);
  }
  return { best, margin: values[best]! - second };
}

/** Logits per position of one sequence, straight from the files of a checkpoint directory. */
export async function referenceForward(
  dir: string,
  ids: readonly number[],
  options: ReferenceOptions = {},
): Promise<Rows> {
  return (await ReferenceModel.open(dir, options)).logits(ids);
}
