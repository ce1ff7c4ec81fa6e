import { randomBytes } from "node:crypto";
import { runAtOnce, StageError, type Steps } from "@k3/stage";
import { exp, ln } from "./float64-math.ts";
import { SplitMix64 } from "./split-mix.ts";

export interface SamplerOptions {
  /** 0 (default): the token with the greatest logit, the lowest id among equals. Otherwise logits are divided by it. */
  readonly temperature?: number | undefined;
  /** Draw from the fewest tokens whose probabilities reach this sum, in (0, 1]. Default 1: all. */
  readonly topP?: number | undefined;
  /** Draw only tokens at least this many times as probable as the most probable one, in [0, 1]. Default 0: all. */
  readonly minP?: number | undefined;
  /** Logits of tokens of the history are divided by it where positive, multiplied where negative; greater than 0. Default 1. */
  readonly repeatPenalty?: number | undefined;
  /** An integer from 0 to 2^64 - 1 (a number up to 2^53 - 1). Default: random; `Sampler.seed` tells which. */
  readonly seed?: number | bigint | undefined;
}

export interface TokenLogprob {
  readonly id: number;
  /** Natural logarithm of the model's own probability: before penalty, temperature and truncation. */
  readonly logprob: number;
}

export interface Sampler {
  readonly seed: bigint;
  /**
   * Chooses the next token. `logits` has one value per vocabulary entry and is not changed; `history` are the ids so far, for the
   * penalty. Throws E_DATA for logits without a finite greatest value, E_USAGE for ids of the history outside of them.
   */
  next(logits: Float32Array, history: readonly number[]): TokenLogprob;
  /** The same in steps: with the released vocabulary a draw takes long enough for an event loop to notice. */
  nextSteps(logits: Float32Array, history: readonly number[]): Steps<TokenLogprob>;
  /** Goes on as if `tokens` tokens had been drawn: an earlier start with the same seed drew them. */
  skip(tokens: number): void;
  /** The state of the generator, 16 hexadecimal digits; it changes with every draw (never at temperature 0). */
  saveState(): string;
  /** Goes on from a saved state. Throws E_USAGE when it is none. */
  restoreState(state: string): void;
}

/**
 * Makes a sampler. All arithmetic is float64 in the order of ids, with exp and ln of our own, so that equal logits, options and seed
 * give equal tokens on every machine. In order: repeat penalty, temperature, min-p, top-p (over what min-p left), one draw of
 * SplitMix64 per token. Throws E_USAGE for values out of range.
 */
export function createSampler(options: SamplerOptions = {}): Sampler {
  const { temperature = 0, topP = 1, minP = 0, repeatPenalty = 1 } = options;
  requireRange("temperature", temperature, temperature >= 0, "a number of at least 0");
  requireRange("topP", topP, topP > 0 && topP <= 1, "greater than 0 and at most 1");
  requireRange("minP", minP, minP >= 0 && minP <= 1, "from 0 to 1");
  requireRange("repeatPenalty", repeatPenalty, repeatPenalty > 0, "greater than 0");
  const seed = checkedSeed(options.seed);
  const generator = new SplitMix64(seed);
  function* nextSteps(logits: Float32Array, history: readonly number[]): Steps<TokenLogprob> {
    const greatest = argmax(logits);
    // Before the first pause, so that draws that overlap take their numbers in the order in which they began.
    const uniform = temperature === 0 ? 0 : generator.uniform();
    yield;
    const penalise = repeatPenalty !== 1;
    const adjusted = penalise ? yield* penalised(logits, history, repeatPenalty) : logits;
    const best = penalise ? argmax(adjusted) : greatest;
    const id =
      temperature === 0 ? best : yield* draw(adjusted, adjusted[best]!, { temperature, topP, minP }, uniform);
    return { id, logprob: logits[id]! - (yield* logSumExp(logits, logits[greatest]!)) };
  }
  return {
    seed,
    next: (logits, history) => runAtOnce(nextSteps(logits, history)),
    nextSteps,
    skip(tokens) {
      if (temperature > 0) for (let i = 0; i < tokens; i++) generator.uniform();
    },
    saveState: () => generator.save(),
    restoreState: (state) => generator.restore(state),
  };
}

/**
 * The k most probable tokens under the model, in descending order, the lowest id first among equals.
 * Throws E_USAGE unless k is an integer from 1 to logits.length; E_DATA as Sampler.next.
 */
export function topLogprobs(logits: Float32Array, k: number): TokenLogprob[] {
  return runAtOnce(topLogprobsSteps(logits, k));
}

/** topLogprobs in steps. */
export function* topLogprobsSteps(logits: Float32Array, k: number): Steps<TokenLogprob[]> {
  if (!Number.isInteger(k) || k < 1 || k > logits.length) {
    throw new StageError(
      "E_USAGE",
      `logprobs of ${k} tokens were asked for; from 1 to ${logits.length} are possible`,
    );
  }
  const normaliser = yield* logSumExp(logits, logits[argmax(logits)]!);
  const descending = new Descending(logits);
  yield* descending.prepare();
  const top: TokenLogprob[] = [];
  while (top.length < k) {
    const id = descending.next()!;
    top.push({ id, logprob: logits[id]! - normaliser });
    if (top.length % STEP === 0) yield;
  }
  return top;
}

/** Vocabulary entries between two pauses. */
const STEP = 4096;

function* draw(
  logits: Float32Array | Float64Array,
  greatest: number,
  options: { temperature: number; topP: number; minP: number },
  uniform: number,
): Steps<number> {
  const weights = new Float64Array(logits.length);
  let total = 0;
  for (let id = 0; id < logits.length; id++) {
    // Relative to the most probable token, whose weight is 1.
    const weight = exp((logits[id]! - greatest) / options.temperature);
    if (id % STEP === 0) yield;
    if (weight < options.minP) continue;
    weights[id] = weight;
    total += weight;
  }
  const descending = new Descending(weights);
  yield* descending.prepare();
  const nucleus: number[] = [];
  const cumulative: number[] = [];
  const wanted = options.topP * total;
  let sum = 0;
  // Without top-p the draw itself says how far to go; with it the whole nucleus must be known first.
  const enough = options.topP < 1 ? () => sum >= wanted : () => sum > uniform * total;
  while (nucleus.length === 0 || !enough()) {
    const id = descending.next();
    if (id === null || weights[id] === 0) break;
    sum += weights[id]!;
    nucleus.push(id);
    cumulative.push(sum);
    if (nucleus.length % STEP === 0) yield;
  }
  const target = uniform * (options.topP < 1 ? sum : total);
  const found = cumulative.findIndex((reached) => reached > target);
  // Rounding can leave the target at the very end; the last candidate is meant then.
  return nucleus[found < 0 ? nucleus.length - 1 : found]!;
}

/** Indices by descending value, ascending among equals, from a heap: the first few of 163,840 cost little more than one pass. */
class Descending {
  readonly #values: Float32Array | Float64Array;
  readonly #heap: Int32Array;
  #size: number;

  constructor(values: Float32Array | Float64Array) {
    this.#values = values;
    this.#heap = new Int32Array(values.length);
    this.#size = values.length;
    for (let id = 0; id < values.length; id++) this.#heap[id] = id;
  }

  /** Before next(). */
  *prepare(): Steps<void> {
    for (let at = (this.#size >> 1) - 1; at >= 0; at--) {
      this.#sink(at);
      if (at % STEP === 0) yield;
    }
  }

  next(): number | null {
    if (this.#size === 0) return null;
    const top = this.#heap[0]!;
    this.#heap[0] = this.#heap[--this.#size]!;
    if (this.#size > 0) this.#sink(0);
    return top;
  }

  #sink(start: number): void {
    const heap = this.#heap;
    const moved = heap[start]!;
    let at = start;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= this.#size) break;
      if (child + 1 < this.#size && this.#before(heap[child + 1]!, heap[child]!)) child += 1;
      if (!this.#before(heap[child]!, moved)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = moved;
  }

  #before(a: number, b: number): boolean {
    const values = this.#values;
    return values[a]! > values[b]! || (values[a] === values[b] && a < b);
  }
}

function* penalised(logits: Float32Array, history: readonly number[], penalty: number): Steps<Float64Array> {
  const adjusted = new Float64Array(logits);
  const seen = new Uint8Array(logits.length);
  const { length } = history;
  for (let at = 0; at < length; at++) {
    if (at % STEP === STEP - 1) yield;
    const id = history[at]!;
    if (seen[id] === 1) continue;
    seen[id] = 1;
    const logit = adjusted[id];
    if (logit === undefined) {
      throw new StageError("E_USAGE", `id ${id} of the history is not one of the ${logits.length} logits`);
    }
    adjusted[id] = logit > 0 ? logit / penalty : logit * penalty;
  }
  return adjusted;
}

/** The index of the greatest value, the lowest among equals. Throws E_DATA for NaN, and when the greatest value is not finite. */
function argmax(logits: Float32Array | Float64Array): number {
  let best = 0;
  for (let id = 0; id < logits.length; id++) {
    const logit = logits[id]!;
    if (logit > logits[best]!) best = id;
    else if (Number.isNaN(logit)) throw badLogits(`logit ${id} is not a number`);
  }
  if (!Number.isFinite(logits[best]))
    throw badLogits(`the greatest of ${logits.length} logits is ${logits[best]}`);
  return best;
}

/** ln of the sum of e^logit, relative to the greatest logit, added in the order of ids. */
function* logSumExp(logits: Float32Array, greatest: number): Steps<number> {
  let sum = 0;
  for (let id = 0; id < logits.length; id++) {
    sum += exp(logits[id]! - greatest);
    if (id % STEP === 0) yield;
  }
  return greatest + ln(sum);
}

function badLogits(what: string): StageError {
  return new StageError("E_DATA", `${what}; no token can be chosen`, {
    hint: "damaged weights are the usual cause: verify the checkpoint (k3 verify)",
  });
}

function requireRange(name: string, value: number, holds: boolean, what: string): void {
  if (typeof value === "number" && Number.isFinite(value) && holds) return;
  throw new StageError("E_USAGE", `${name} is ${value}; it must be ${what}`);
}

function checkedSeed(seed: number | bigint | undefined): bigint {
  if (seed === undefined) return randomBytes(8).readBigUInt64LE();
  if (typeof seed === "bigint" ? seed >= 0n && seed < 1n << 64n : Number.isSafeInteger(seed) && seed >= 0) {
    return BigInt(seed);
  }
  throw new StageError(
    "E_USAGE",
    `seed is ${seed}; it must be an integer from 0 to 2^64 - 1 (2^53 - 1 as a number)`,
  );
}
