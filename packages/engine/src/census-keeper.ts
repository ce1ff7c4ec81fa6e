import { type OnEvent, toStageError } from "@k3/stage";
import {
  addCounts,
  addToCensus,
  type CensusOwner,
  censusShares,
  type ExpertCensus,
  emptyCensus,
  readCensus,
} from "./expert-census.ts";

/** A step can take minutes and a machine can vanish: a census waits no longer than this for the disk. */
const SAVE_EVERY_MS = 60_000;

/**
 * The census file of an open model. It only helps the cache, so nothing that happens to it ends a run: a file that cannot
 * be used, or a directory that cannot be written, is said once as a warning.
 */
export class CensusKeeper {
  /** Tokens counted in earlier runs. */
  readonly tokens: number;
  /** [layers][experts]: uses per token in earlier runs; empty when there were none. */
  readonly shares: Float32Array;
  readonly #path: string;
  readonly #owner: CensusOwner;
  readonly #onEvent: OnEvent | undefined;
  /** Counted, and not on the disk yet. */
  #unsaved: ExpertCensus;
  #saved = performance.now();
  #silent = false;

  private constructor(path: string, owner: CensusOwner, before: ExpertCensus, onEvent: OnEvent | undefined) {
    this.#path = path;
    this.#owner = owner;
    this.#onEvent = onEvent;
    this.#unsaved = emptyCensus(owner);
    this.tokens = before.tokens;
    this.shares = censusShares(before);
  }

  static async open(path: string, owner: CensusOwner, onEvent: OnEvent | undefined): Promise<CensusKeeper> {
    try {
      return new CensusKeeper(path, owner, await readCensus(path, owner), onEvent);
    } catch (error) {
      const keeper = new CensusKeeper(path, owner, emptyCensus(owner), onEvent);
      keeper.#warn("the census of experts begins anew", error);
      return keeper;
    }
  }

  get due(): boolean {
    return performance.now() - this.#saved >= SAVE_EVERY_MS;
  }

  /** Adds to the file what was counted since the last call; what cannot be written waits for the next. */
  async add(counted: ExpertCensus): Promise<void> {
    this.#saved = performance.now();
    addCounts(this.#unsaved, counted);
    const saving = this.#unsaved;
    this.#unsaved = emptyCensus(this.#owner);
    try {
      await addToCensus(this.#path, this.#owner, saving);
      this.#silent = false;
    } catch (error) {
      if (!this.#silent) this.#warn("the census of experts is not kept", error);
      this.#silent = true;
      addCounts(this.#unsaved, saving);
    }
  }

  #warn(what: string, error: unknown): void {
    this.#onEvent?.({
      type: "log",
      level: "warn",
      stage: "run",
      message: `${what}: ${toStageError(error).message}`,
    });
  }
}
