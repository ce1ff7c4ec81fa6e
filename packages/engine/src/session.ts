import { runInSlices, StageError, type StageOptions } from "@k3/stage";
import type { Model } from "./model.ts";
import { FORWARD_ALL_LOGITS, FORWARD_LAST_LOGITS, FORWARD_TRACE, type NativeState } from "./native.ts";
import type { PassStats } from "./pass.ts";
import { loadState, saveState } from "./state-file.ts";
import { createSampler, type Sampler } from "./text/index.ts";

export interface PrefillOptions extends StageOptions {
  /** Called after every pass, with the record of what it did. */
  onPass?: ((record: PassRecord) => void) | undefined;
  /** Keep the logits of every position of this call in `allLogits` (vocab x 4 bytes each); see ModelOptions.allLogits. */
  allLogits?: boolean | undefined;
  /** Record chosen experts and layer maxima in the pass records. */
  trace?: boolean | undefined;
}

export interface PassRecord {
  phase: "prefill" | "decode";
  stats: PassStats;
  /** When tracing: [layers with experts][tokens][experts per token], by descending biased score. */
  experts?: Uint16Array;
  /** When tracing, per layer: the largest magnitude of the residual stream over the tokens of the pass. */
  layerMax?: Float32Array;
}

export interface GenerateOptions extends StageOptions {
  maxTokens: number;
  /** Greedy by default. */
  sampler?: Sampler | undefined;
  /** Ids that end the generation; the one that does is yielded too. */
  endIds?: readonly number[] | undefined;
  onPass?: ((record: PassRecord) => void) | undefined;
  trace?: boolean | undefined;
}

export interface GenerateStep {
  id: number;
  /** Natural logarithm of its probability under the model. */
  logprob: number;
  /** From this token's own pass; null for the first, whose logits the prompt's pass gave. */
  stats: PassStats | null;
  /** Why nothing follows, or null when more may. */
  end: "end" | "length" | null;
}

/** A copy of a session's state, to return to. */
export interface Snapshot {
  readonly position: number;
  close(): void;
}

/**
 * A sequence of tokens and what the model remembers of it. Calls of one session must not overlap; sessions of one model
 * take turns pass by pass.
 */
export class Session {
  readonly #model: Model;
  #state: NativeState | undefined;
  #ids: number[] = [];
  #logits: Float32Array | null = null;
  #allLogits: Float32Array | null = null;
  #busy = false;

  constructor(model: Model) {
    this.#model = model;
    this.#state = model.createState();
  }

  /** All ids so far, in order; the last ones may not have gone through the model yet (see `position`). */
  get ids(): readonly number[] {
    return this.#ids;
  }

  /** How many of `ids` the state holds. */
  get position(): number {
    return this.#requireState().position;
  }

  /** A pass was stopped within: the session can only be rolled back, loaded or closed. */
  get broken(): boolean {
    return this.#requireState().broken;
  }

  /** Logits after the last id, [vocab]; null while there are none (nothing ran yet, or ids are pending). */
  get logits(): Float32Array | null {
    return this.position === this.#ids.length ? this.#logits : null;
  }

  /** The logits that the last token was chosen from, [vocab]: `logits` before it was appended. */
  get lastLogits(): Float32Array | null {
    return this.#logits;
  }

  /** Logits of every position of the last prefill with `allLogits`, [positions][vocab], or null. */
  get allLogits(): Float32Array | null {
    return this.#allLogits;
  }

  /**
   * Appends ids and runs everything pending through the model, in chunks. Afterwards `logits` belong to the last id.
   * Throws E_USAGE for ids outside the vocabulary, no ids at all, or a full context; E_MEMORY when there is no room for `allLogits`;
   * E_READ when a weight cannot be read; E_INTERRUPTED when the signal stopped it (inside a pass the session can then only be rolled back or closed).
   */
  async prefill(ids: readonly number[], options: PrefillOptions = {}): Promise<PassStats[]> {
    return this.#exclusively(async (state) => {
      this.#requireIds(ids);
      const pending = [...this.#ids.slice(state.position), ...ids];
      if (pending.length === 0) throw new StageError("E_USAGE", "there are no ids to run");
      this.#requireRoom(state, pending.length);
      if (options.allLogits) this.#model.keepLogits(state, pending.length);
      // Not spread: a long prompt has more ids than a call can have arguments.
      for (const id of ids) this.#ids.push(id);
      return this.#run(state, pending, "prefill", options);
    });
  }

  /**
   * Chooses tokens one after the other and runs them. Needs logits: prefill first, or load a state. The last token is
   * chosen but not run; it is pending, and the next prefill or generate runs it.
   */
  async *generate(options: GenerateOptions): AsyncGenerator<GenerateStep, void, undefined> {
    const sampler = options.sampler ?? createSampler();
    const ends = new Set(options.endIds ?? []);
    for (let count = 0; count < options.maxTokens; count++) {
      const step = await this.#exclusively(async (state) => {
        const pending = this.#ids.slice(state.position);
        let stats: PassStats | null = null;
        if (pending.length > 0) {
          this.#requireRoom(state, pending.length);
          stats = (await this.#run(state, pending, "decode", options)).at(-1)!;
        }
        if (!this.#logits)
          throw new StageError("E_USAGE", "there are no logits to choose from: prefill first");
        const { id, logprob } = await runInSlices(sampler.nextSteps(this.#logits, this.#ids));
        this.#ids.push(id);
        const end = ends.has(id) ? "end" : count + 1 === options.maxTokens ? "length" : null;
        return { id, logprob, stats, end } as const;
      });
      yield step;
      if (step.end !== null) return;
    }
  }

  /** Writes the whole state to a file, atomically: see state-file.ts for the format. */
  async save(path: string): Promise<void> {
    await this.#exclusively(async (state) => {
      if (state.broken) throw broken();
      await saveState(path, this.#model, { state, ids: this.#ids, logits: this.logits });
    });
  }

  /**
   * Replaces the state by a saved one. Throws E_DATA when the file is damaged, truncated or of another format version,
   * model, revision or number of layers; E_USAGE when it does not fit into the context. The session is then empty.
   */
  async load(path: string): Promise<void> {
    await this.#exclusively(async (state) => {
      this.#ids = [];
      this.#logits = null;
      const loaded = await loadState(path, this.#model, state);
      this.#ids = loaded.ids;
      this.#logits = loaded.logits;
    });
  }

  /** A second session with the same past. Needs room in the plan (`sessions`). */
  async fork(): Promise<Session> {
    return this.#exclusively(async (state) => {
      if (state.broken) throw broken();
      const copy = new Session(this.#model);
      try {
        await this.#model.copyState(copy.#requireState(), state);
      } catch (error) {
        copy.close();
        throw error;
      }
      copy.#ids = [...this.#ids];
      copy.#logits = this.#logits;
      return copy;
    });
  }

  /** A copy of the present to roll back to: the recurrent state cannot be cut back. Needs room in the plan (`sessions`). */
  async snapshot(): Promise<Snapshot> {
    return this.fork();
  }

  /** Returns to a snapshot, also after a pass that was stopped or failed. The snapshot stays good. */
  async rollback(snapshot: Snapshot): Promise<void> {
    await this.#exclusively(async (state) => {
      if (!(snapshot instanceof Session) || snapshot.#model !== this.#model) {
        throw new StageError("E_USAGE", "that is no snapshot of this model");
      }
      await this.#model.copyState(state, snapshot.#requireState());
      this.#ids = [...snapshot.#ids];
      this.#logits = snapshot.#logits;
    });
  }

  /** Frees the state. Safe to call twice. */
  close(): void {
    if (this.#state) this.#model.freeState(this.#state);
    this.#state = undefined;
    this.#logits = null;
    this.#allLogits = null;
  }

  async #run(
    state: NativeState,
    ids: readonly number[],
    phase: "prefill" | "decode",
    options: PrefillOptions,
  ): Promise<PassStats[]> {
    const { chunk } = this.#model.plan;
    const { vocabSize } = this.#model.config;
    const list: PassStats[] = [];
    this.#logits = null;
    if (!options.allLogits) this.#model.keepLogits(state, 0);
    this.#allLogits = options.allLogits ? new Float32Array(ids.length * vocabSize) : null;
    for (let at = 0; at < ids.length; at += chunk) {
      const part = ids.slice(at, at + chunk);
      const last = at + chunk >= ids.length;
      const flags =
        (last ? FORWARD_LAST_LOGITS : 0) |
        (options.allLogits ? FORWARD_ALL_LOGITS : 0) |
        (options.trace ? FORWARD_TRACE : 0);
      const what =
        phase === "decode"
          ? `token ${state.position + 1}`
          : `prompt, ${at + part.length} of ${ids.length} tokens`;
      const pass = await this.#model.forward(state, part, flags, what, options);
      this.#allLogits?.set(pass.logits, at * vocabSize);
      if (last) this.#logits = pass.logits.slice(-vocabSize);
      list.push(pass.stats);
      const traced = options.trace ? { experts: pass.experts, layerMax: pass.layerMax } : {};
      options.onPass?.({ phase, stats: pass.stats, ...traced });
    }
    return list;
  }

  #requireState(): NativeState {
    if (!this.#state) throw new StageError("E_USAGE", "the session is closed");
    return this.#state;
  }

  #requireIds(ids: readonly number[]): void {
    const { vocabSize } = this.#model.config;
    const wrong = ids.find((id) => !Number.isInteger(id) || id < 0 || id >= vocabSize);
    if (wrong === undefined) return;
    throw new StageError("E_USAGE", `token id ${wrong} is not in the vocabulary of ${vocabSize}`);
  }

  #requireRoom(state: NativeState, count: number): void {
    if (state.broken) throw broken();
    if (state.position + count <= state.capacity) return;
    throw new StageError(
      "E_USAGE",
      `${state.position + count} tokens do not fit into the context of ${state.capacity}`,
      { hint: "open the model with a larger contextTokens" },
    );
  }

  async #exclusively<T>(job: (state: NativeState) => Promise<T>): Promise<T> {
    if (this.#busy) throw new StageError("E_USAGE", "the session is busy with another call");
    this.#busy = true;
    try {
      return await job(this.#requireState());
    } finally {
      this.#busy = false;
    }
  }
}

const broken = () =>
  new StageError("E_USAGE", "the session stopped inside a pass and cannot go on", {
    hint: "roll it back to a snapshot, load a state, or start a new one",
  });
