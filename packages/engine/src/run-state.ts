import { existsSync } from "node:fs";
import { dirname } from "node:path";
import { formatBytes, requireSpace, StageError, type StageOptions, toStageError } from "@k3/stage";
import type { MemoryPlan } from "./plan.ts";
import type { Session } from "./session.ts";
import { removeLeftovers } from "./state-aside.ts";
import { readStateHeader } from "./state-file.ts";

/** How a run goes on from a saved state. */
export interface Resumption {
  /** "fresh": there is no state, or it cannot serve. "answer": the state already holds the prompt and what was generated
   * after it. "prefix": the state is the beginning of the prompt. "append": the prompt follows what the state holds. */
  kind: "fresh" | "answer" | "prefix" | "append";
  /** Ids of the prompt that still have to be given to the session. */
  feed: readonly number[];
  /** Ids that were generated after this very prompt by an earlier start. */
  done: readonly number[];
}

/**
 * What to do with a prompt, given the ids that a state holds. A state that begins with the whole prompt is an earlier
 * start of the same command: what it generated counts. A prompt that begins with all of the state continues it. Any
 * other prompt is taken as what comes next, after the state.
 */
export function resume(stateIds: readonly number[] | null, prompt: readonly number[]): Resumption {
  if (stateIds === null) return { kind: "fresh", feed: prompt, done: [] };
  if (prompt.length === 0) return { kind: "append", feed: [], done: [] };
  if (startsWith(stateIds, prompt)) return { kind: "answer", feed: [], done: stateIds.slice(prompt.length) };
  if (startsWith(prompt, stateIds)) return { kind: "prefix", feed: prompt.slice(stateIds.length), done: [] };
  return { kind: "append", feed: prompt, done: [] };
}

function startsWith(whole: readonly number[], beginning: readonly number[]): boolean {
  return beginning.length <= whole.length && beginning.every((id, i) => whole[i] === id);
}

/** Least seconds between two saves of one run, and most of a run's time that saving may take. */
const SAVE_EVERY_SECONDS = 10;
const SAVE_SHARE = 0.05;

/** The state file of a run: read before, saved on the way and at the end. */
export class RunState {
  readonly #path: string;
  readonly #options: StageOptions;
  #savedAt = performance.now();
  #saveSeconds = 0;
  /** What of the session the file holds: how many ids, and the position. */
  #held = { ids: -1, position: -1 };
  #failing = false;

  constructor(path: string, options: StageOptions) {
    this.#path = path;
    this.#options = options;
  }

  /** The ids that the file holds, or null when there is none. Throws E_DATA for a file that is no state. */
  async ids(): Promise<readonly number[] | null> {
    return existsSync(this.#path) ? (await readStateHeader(this.#path)).ids : null;
  }

  /**
   * Says what it will take on disk, loads it into an empty session, and says what that means for the prompt. What killed saves left
   * behind is removed. Throws E_SPACE when a state would not fit beside the present one, or as the system does when there is no such
   * directory: before anything is computed.
   */
  async load(session: Session, plan: MemoryPlan, { kind, feed, done }: Resumption): Promise<void> {
    const most = plan.parts.state + plan.parts.latentCache;
    this.#log(`the state file takes ${formatBytes(most)} at most, and as much again while it is replaced`);
    const freed = await removeLeftovers(this.#path);
    if (freed > 0)
      this.#log(`removed ${formatBytes(freed)} that a save which was killed had left beside the state`);
    await requireSpace(dirname(this.#path), most, "the state file");
    if (kind === "fresh") return;
    await session.load(this.#path);
    const held = session.ids.length;
    this.#held = { ids: held, position: session.position };
    const message = {
      answer: `the state holds this prompt and ${done.length} tokens after it: going on from there`,
      prefix: `the state holds the first ${held} tokens of the prompt: ${feed.length} are left to read`,
      append: `the prompt follows the ${held} tokens that the state holds`,
    }[kind];
    this.#log(message);
  }

  #log(message: string, level: "info" | "warn" = "info"): void {
    this.#options.onEvent?.({ type: "log", level, stage: "run", message });
  }

  /**
   * Saves when the last save is long enough ago that saving stays a small part of the run. A failure is said, once until a save
   * succeeds, and does not end the run: the next save may find room again.
   */
  async saveWhenDue(session: Session): Promise<void> {
    const due = Math.max(SAVE_EVERY_SECONDS, this.#saveSeconds / SAVE_SHARE);
    if ((performance.now() - this.#savedAt) / 1000 < due) return;
    const error = await this.#save(session);
    if (error && !this.#failing) {
      this.#log(`the state could not be saved, and will be tried again: ${error.message}`, "warn");
    }
    this.#failing = error !== null;
  }

  /**
   * Saves what is not saved yet, at the end of a run. False, and a warning, when the file does not hold all of the session: what it held
   * before then stands, and the run's result does too.
   */
  async finish(session: Session): Promise<boolean> {
    const stands = `what ${this.#path} held before stands`;
    if (session.broken) {
      this.#log(`the last pass was stopped within, so the state is not saved: ${stands}`, "warn");
      return false;
    }
    const { ids, position } = this.#held;
    if (session.ids.length === ids && session.position === position) return true;
    const error = await this.#save(session);
    if (error) this.#log(`the state is not saved: ${error.message}; ${stands}`, "warn");
    return error === null;
  }

  async #save(session: Session): Promise<StageError | null> {
    const started = performance.now();
    try {
      await session.save(this.#path);
      this.#held = { ids: session.ids.length, position: session.position };
      return null;
    } catch (error) {
      return toStageError(error);
    } finally {
      this.#savedAt = performance.now();
      this.#saveSeconds = (this.#savedAt - started) / 1000;
    }
  }

  /**
   * A signal that is aborted between passes only: a pass that is stopped inside takes its state with it. `passed` is to be
   * called after every pass, and before the next.
   */
  betweenPasses(): { signal: AbortSignal; passed: () => void } {
    const { signal } = this.#options;
    const boundary = new AbortController();
    const told =
      "finishing the pass under way, so that the state can be saved; interrupt again to stop at once";
    signal?.addEventListener("abort", () => this.#log(told), { once: true });
    return {
      signal: boundary.signal,
      passed: () => {
        if (signal?.aborted) boundary.abort(signal.reason);
      },
    };
  }
}

/** Refuses what an earlier start cannot give again: the logits and experts of passes that are not run now. */
export function mustRunAll(resumption: Resumption, asked: { name: string; given: boolean }[]): void {
  const name = asked.find(({ given }) => given)?.name;
  if (name === undefined || resumption.kind !== "answer" || resumption.done.length === 0) return;
  throw new StageError("E_USAGE", `${name} needs passes that the state file says are done already`, {
    hint: "give another --state, or none",
  });
}
