import type { K3Config } from "@k3/checkpoint";
import { formatBytes, StageError, type StageOptions, throwIfAborted } from "@k3/stage";
import type { CensusKeeper } from "./census-keeper.ts";
import type { ModelOptions } from "./model-options.ts";
import type { NativeEngine, NativeState, NativeStats } from "./native.ts";
import { fromNative, native } from "./native-errors.ts";
import { type OpenedEngine, openEngine } from "./open-engine.ts";
import { type Pass, passStats, reportPass } from "./pass.ts";
import { logitsBytes, type MemoryPlan } from "./plan.ts";
import { Session } from "./session.ts";

/** A model that is open: its plan, its native engine, and the sessions that run on it, one pass at a time. */
export class Model {
  readonly config: K3Config;
  /** How the memory budget is spent. */
  readonly plan: MemoryPlan;
  /** Layers that run. */
  readonly layers: number;
  readonly revision: string | null;
  readonly configSha256: string;
  /** How the trunk is stored ("none" as in the checkpoint), and the bytes of one pass of it with the head. */
  readonly trunk: { codec: string; storedBytes: number };
  /** The instruction set in use. */
  readonly isa: string;
  readonly threads: number;
  /** Tokens that the census of experts had counted when the model was opened; null without a census. */
  readonly censusTokens: number | null;
  readonly #census: CensusKeeper | undefined;
  readonly #engine: NativeEngine;
  readonly #sessions: number;
  readonly #states = new Set<NativeState>();
  /** Bytes of logits that each state's session keeps of all its positions. */
  readonly #logits = new Map<NativeState, number>();
  #queue: Promise<unknown> = Promise.resolve();
  #closing: Promise<void> | undefined;

  private constructor(opened: OpenedEngine) {
    this.config = opened.config;
    this.plan = opened.plan;
    this.layers = opened.layers;
    this.revision = opened.revision;
    this.configSha256 = opened.configSha256;
    this.trunk = opened.trunk;
    this.isa = opened.isa;
    this.threads = opened.threads;
    this.censusTokens = opened.census?.tokens ?? null;
    this.#census = opened.census;
    this.#engine = opened.engine;
    this.#sessions = opened.sessions;
  }

  /**
   * Reads the headers, solves the memory plan and takes the memory; no weights are read yet.
   *
   * Throws E_USAGE for options out of range, E_CONFIG for a config that is refused, E_DATA for a damaged checkpoint or a
   * trunk of another one, E_MEMORY when the budget cannot be kept (with `details: {needed, given}`).
   */
  static async open(options: ModelOptions): Promise<Model> {
    return new Model(await openEngine(options));
  }

  /** A new sequence, empty. Throws E_MEMORY when as many exist as the plan has room for. */
  session(): Session {
    return new Session(this);
  }

  /** Running totals since the model was opened; cheap, may be asked for at any time. */
  stats(): NativeStats {
    this.#requireOpen();
    return this.#engine.stats();
  }

  /** Stops what runs and frees everything, sessions included. Called again, it waits for the same end. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#engine.interrupt();
    await this.#queue.catch(() => undefined);
    await this.#census?.add(this.#engine.takeCensus());
    for (const state of this.#states) void this.#engine.release(state);
    this.#states.clear();
    await this.#engine.freeMemory();
    this.#engine.close();
  }

  /** For Session: takes the memory of a state. */
  createState(): NativeState {
    this.#requireOpen();
    if (this.#states.size >= this.#sessions) {
      throw new StageError("E_MEMORY", `the plan has room for ${this.#sessions} sessions and snapshots`, {
        hint: "close one, or open the model with a larger `sessions`",
        details: { needed: this.#states.size + 1, given: this.#sessions },
      });
    }
    const state = fromNative(() => this.#engine.createState(this.plan.contextTokens));
    this.#states.add(state);
    return state;
  }

  /** For Session: gives it back. */
  freeState(state: NativeState): void {
    this.#logits.delete(state);
    if (this.#states.delete(state)) void this.#engine.release(state);
  }

  /**
   * For Session: makes sure that the logits of so many positions, instead of those that it keeps, fit beside the others' into what is
   * planned for them and what the plan leaves. Throws E_MEMORY when they do not.
   */
  keepLogits(state: NativeState, positions: number): void {
    if (positions === 0) {
      this.#logits.delete(state);
      return;
    }
    const { budgetBytes, plannedBytes, parts, chunk } = this.plan;
    let kept = 0;
    for (const [other, bytes] of this.#logits) if (other !== state) kept += bytes;
    const given = parts.logits + budgetBytes - plannedBytes - kept;
    const needed = logitsBytes(positions, chunk, this.config.vocabSize);
    if (needed > given) {
      throw new StageError(
        "E_MEMORY",
        `the logits of ${positions} positions take ${formatBytes(needed)}; the plan leaves ${formatBytes(Math.max(0, given))}`,
        {
          hint: "open the model with `allLogits`, the number of positions, or prefill fewer ids at a time",
          details: { needed, given },
        },
      );
    }
    this.#logits.set(state, needed);
  }

  /** For Session: copies one state over another, in turn with the passes. */
  copyState(to: NativeState, from: NativeState): Promise<void> {
    return this.#inTurn(async () => {
      this.#requireOpen();
      await native(this.#engine.copy(to, from));
    });
  }

  /** For Session: one pass over at most `plan.chunk` ids; flags as in native.ts. Passes of a model take turns. */
  forward(
    state: NativeState,
    ids: readonly number[],
    flags: number,
    phase: string,
    options: StageOptions,
  ): Promise<Pass> {
    return this.#inTurn(async () => {
      this.#requireOpen();
      throwIfAborted(options.signal);
      const before = this.#engine.stats();
      const started = performance.now();
      const interrupt = () => this.#engine.interrupt();
      const stopProgress = reportPass(phase, this.layers, () => this.#engine.stats(), options);
      const running = native(this.#engine.forward(state, Int32Array.from(ids), flags));
      options.signal?.addEventListener("abort", interrupt, { once: true });
      try {
        const pass = await running;
        const seconds = (performance.now() - started) / 1000;
        const stats = passStats(ids.length, seconds, before, this.#engine.stats());
        if (this.#census?.due) await this.#census.add(this.#engine.takeCensus());
        return { ...pass, stats };
      } catch (error) {
        throwIfAborted(options.signal);
        throw error;
      } finally {
        options.signal?.removeEventListener("abort", interrupt);
        stopProgress(!this.#closing);
      }
    });
  }

  #inTurn<T>(job: () => Promise<T>): Promise<T> {
    const result = this.#queue.then(job, job);
    this.#queue = result.catch(() => undefined);
    return result;
  }

  #requireOpen(): void {
    if (this.#closing) throw new StageError("E_USAGE", "the model is closed");
  }
}
