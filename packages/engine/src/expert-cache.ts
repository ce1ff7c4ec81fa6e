import { StageError } from "@k3/stage";

/** Chosen experts: [layer with experts][token position][rank]. */
export type ExpertTrace = readonly (readonly (readonly number[])[])[];

/** "lru": the least recently used leaves. "k3": the engine's rule. "belady": the one needed last, which sees the future. */
export type ExpertCachePolicy = "lru" | "k3" | "belady";

export interface ExpertCacheResult {
  requests: number;
  /** Requests that were answered without a read. */
  hits: number;
}

/**
 * Replays a trace token by token, layer by layer, as decoding does, through a cache of `slots` experts.
 *
 * The engine's rule (native/expert_store.cc follows the same): an expert's worth is the number of tokens that chose it,
 * halved with every token since, plus its uses per token of `census` (tokens of earlier runs), over the number of layers until its own comes round again. When the cache is full, a
 * read expert takes the place of the least worthy cached one if that is worth less; else it leaves at once.
 */
export function simulateExpertCache(
  trace: ExpertTrace,
  policy: ExpertCachePolicy,
  slots: number,
  census?: ExpertTrace,
): ExpertCacheResult {
  if (!Number.isInteger(slots) || slots < 0) {
    throw new StageError("E_USAGE", `a cache of ${slots} experts cannot be`);
  }
  const rule =
    policy === "lru" ? new Lru() : policy === "k3" ? new Recurrence(trace.length, census) : new Belady(trace);
  const cached = new Set<number>();
  const result = { requests: 0, hits: 0 };
  const tokens = Math.min(...trace.map((layer) => layer.length));
  for (let token = 0; token < tokens; token++) {
    for (let layer = 0; layer < trace.length; layer++) {
      const keys = trace[layer]![token]!.map((expert) => expert * trace.length + layer);
      rule.arrive(token, layer, keys);
      const missed = keys.filter((key) => !cached.has(key));
      result.requests += keys.length;
      result.hits += keys.length - missed.length;
      for (const key of missed) admit(cached, key, rule, slots);
    }
  }
  return result;
}

interface Rule {
  /** A layer of a token asks for these experts; the clock stands there from now on. */
  arrive(token: number, layer: number, keys: readonly number[]): void;
  /** The lowest leaves. */
  worth(key: number): number;
}

function admit(cached: Set<number>, key: number, rule: Rule, slots: number): void {
  if (cached.size < slots) {
    cached.add(key);
    return;
  }
  let least = rule.worth(key);
  let leaving = key;
  for (const other of cached) {
    const worth = rule.worth(other);
    if (worth < least) {
      least = worth;
      leaving = other;
    }
  }
  if (leaving === key) return;
  cached.delete(leaving);
  cached.add(key);
}

class Lru implements Rule {
  readonly #last = new Map<number, number>();
  #clock = 0;

  arrive(_token: number, _layer: number, keys: readonly number[]): void {
    for (const key of keys) this.#last.set(key, ++this.#clock);
  }

  worth(key: number): number {
    return this.#last.get(key)!;
  }
}

class Recurrence implements Rule {
  readonly #layers: number;
  readonly #seen = new Map<number, { count: number; token: number }>();
  /** Per expert: uses per token in the census. */
  readonly #usual = new Map<number, number>();
  #token = 0;
  #layer = 0;

  constructor(layers: number, census: ExpertTrace | undefined) {
    this.#layers = layers;
    for (const [layer, tokens] of (census ?? []).entries()) {
      for (const expert of tokens.flat()) {
        const key = expert * layers + layer;
        this.#usual.set(key, (this.#usual.get(key) ?? 0) + 1 / tokens.length);
      }
    }
  }

  arrive(token: number, layer: number, keys: readonly number[]): void {
    this.#token = token;
    this.#layer = layer;
    for (const key of keys) {
      const before = this.#seen.get(key) ?? { count: 0, token };
      this.#seen.set(key, { count: before.count * 0.5 ** (token - before.token) + 1, token });
    }
  }

  worth(key: number): number {
    const { count, token } = this.#seen.get(key)!;
    const layer = key % this.#layers;
    const distance = layer > this.#layer ? layer - this.#layer : layer + this.#layers - this.#layer;
    return (count * 0.5 ** (this.#token - token) + (this.#usual.get(key) ?? 0)) / distance;
  }
}

class Belady implements Rule {
  /** Per expert: the moments at which it is asked for, descending, so that the next one is the last. */
  readonly #uses = new Map<number, number[]>();
  readonly #layers: number;

  constructor(trace: ExpertTrace) {
    this.#layers = trace.length;
    const tokens = Math.min(...trace.map((layer) => layer.length));
    for (let token = tokens - 1; token >= 0; token--) {
      for (let layer = trace.length - 1; layer >= 0; layer--) {
        for (const expert of trace[layer]![token]!) {
          const key = expert * trace.length + layer;
          const uses = this.#uses.get(key) ?? [];
          uses.push(token * trace.length + layer);
          this.#uses.set(key, uses);
        }
      }
    }
  }

  arrive(token: number, layer: number, keys: readonly number[]): void {
    for (const key of keys) {
      const uses = this.#uses.get(key)!;
      while (uses.length > 0 && uses.at(-1)! <= token * this.#layers + layer) uses.pop();
    }
  }

  worth(key: number): number {
    return -(this.#uses.get(key)!.at(-1) ?? Number.POSITIVE_INFINITY);
  }
}
