import { existsSync } from "node:fs";
import { readdir, unlink } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import {
  formatBytes,
  Meter,
  type OnEvent,
  requireSpace,
  type StageOptions,
  throwIfAborted,
  toStageError,
} from "@k3/stage";
import type { Model } from "../model.ts";
import type { Session } from "../session.ts";
import { readStateHeader } from "../state-file.ts";
import type { Measured } from "./log.ts";

/** A state is saved when this much time has passed since, or twenty times what saving takes: at most 5 % of the time goes to it. */
const SAVE_INTERVAL_SECONDS = 10;
const SAVE_SHARE = 20;
const PROGRESS_MS = 500;

/**
 * The model's state of one conversation, in memory and in a file. Recurrent state, convolution taps and latent cache cannot be cut
 * back to an earlier position, so a state is used only when all ids that it has read are the first ones of what is wanted; else
 * everything is read again from the start.
 */
export class StateKeeper {
  readonly #model: Model;
  readonly #path: string | null;
  #session: Session;
  #savedAt = performance.now();
  #saveSeconds = 0;
  /** Position of the saved state. */
  #saved = -1;
  /** Why the last state was given up. */
  #lost: string | null = null;

  constructor(model: Model, path: string | null) {
    this.#model = model;
    this.#path = path;
    this.#session = model.session();
  }

  get session(): Session {
    return this.#session;
  }

  /** Why there is no state where one should be, or null. */
  get lost(): string | null {
    return this.#lost;
  }

  /** Loads the saved state when all of it belongs to `history`; else `lost` says why not. */
  async load(history: readonly number[], options: StageOptions): Promise<void> {
    if (this.#path === null) return;
    if (!existsSync(this.#path)) {
      this.#lost = "there is no saved state";
      return;
    }
    try {
      const { ids } = await readStateHeader(this.#path);
      const differs = firstDifference(ids, history);
      if (differs !== null) {
        this.#lost = `the saved state belongs to other words from token ${differs + 1} on`;
        return;
      }
      await waiting("loading the state", options.onEvent, this.#session.load(this.#path));
      this.#saved = this.#session.position;
      this.#lost = null;
    } catch (error) {
      this.#lost = `the saved state cannot be used: ${toStageError(error).message}`;
    }
  }

  /**
   * The best state there is for `wanted`: the present one, the saved one, or none. Gives how many of the ids it has read; when none,
   * `lost` says why.
   */
  async prepare(wanted: readonly number[], options: StageOptions): Promise<number> {
    const { broken, ids } = this.#session;
    const differs = firstDifference(ids, wanted);
    if (!broken && differs === null) return this.#session.position;
    this.#session.close();
    this.#session = this.#model.session();
    await this.load(wanted, options);
    if (this.#session.position === 0) {
      this.#lost = broken
        ? "the pass that was stopped took its state with it"
        : `what was said differs from what the state has read, from token ${differs! + 1} on`;
    }
    return this.#session.position;
  }

  /**
   * Reads what is missing of `wanted`, after `prepare`; saves the state on the way when that is due. Throws as Session.prefill; what is
   * reached by then is kept. `stop` ends it early, after the pass under way.
   */
  async reach(wanted: readonly number[], options: StageOptions, stop?: AbortSignal): Promise<Measured> {
    const session = this.#session;
    const started = performance.now();
    let tokens = 0;
    const total = wanted.length - session.position;
    const meter = new Meter({
      stage: "chat",
      phase: "reading",
      unit: "tokens",
      total,
      onEvent: options.onEvent,
    });
    while ((session.position < wanted.length || session.logits === null) && !stop?.aborted) {
      throwIfAborted(options.signal);
      // A whole chunk with the ids that are still pending: a pass costs the same for one token as for a chunk.
      const room = this.#model.plan.chunk - (session.ids.length - session.position);
      const part = wanted.slice(session.ids.length, session.ids.length + Math.max(0, room));
      const passes = await session.prefill(part, {
        ...options,
        onEvent: overall(meter, tokens, part.length, options),
      });
      tokens += passes.reduce((sum, pass) => sum + pass.tokens, 0);
      meter.set(tokens);
      await this.saveWhenDue(options);
    }
    if (tokens > 0) meter.emit();
    return { tokens, seconds: (performance.now() - started) / 1000 };
  }

  /** Forgets everything. */
  async reset(): Promise<void> {
    this.#session.close();
    this.#session = this.#model.session();
    this.#lost = null;
    this.#saved = -1;
    if (this.#path !== null && existsSync(this.#path)) await unlink(this.#path);
  }

  /** Removes what killed saves left behind; then refuses with E_SPACE when a state would not fit beside the present one. */
  async requireSpace(): Promise<void> {
    if (this.#path === null) return;
    await removeLeftovers(this.#path);
    await requireSpace(dirname(this.#path), this.stateBytes, "the saved state");
  }

  /** The most that a saved state takes on disk. */
  get stateBytes(): number {
    const { parts, contextTokens } = this.#model.plan;
    return parts.state + parts.latentCache + 4 * this.#model.config.vocabSize + 8 * contextTokens;
  }

  async saveWhenDue(options: StageOptions): Promise<void> {
    const due = Math.max(SAVE_INTERVAL_SECONDS, SAVE_SHARE * this.#saveSeconds);
    if ((performance.now() - this.#savedAt) / 1000 >= due) await this.save(options);
  }

  /** Saves the state. A failure is reported and does not end the conversation: all that is lost is time, after a restart. */
  async save(options: StageOptions): Promise<void> {
    const session = this.#session;
    if (this.#path === null || session.broken || session.position === this.#saved) return;
    const started = performance.now();
    try {
      await waiting(
        `saving the state, ${formatBytes(this.stateBytes)} at most`,
        options.onEvent,
        session.save(this.#path),
      );
      this.#saved = session.position;
    } catch (error) {
      const message = `the state could not be saved, so a restart will read the conversation again: ${toStageError(error).message}`;
      options.onEvent?.({ type: "log", level: "warn", stage: "chat", message });
    }
    this.#savedAt = performance.now();
    this.#saveSeconds = (this.#savedAt - started) / 1000;
  }

  close(): void {
    this.#session.close();
  }
}

/** Turns a pass's progress by layers into that of everything that is to be read, so that its end can be told. */
function overall(meter: Meter, before: number, tokens: number, { onEvent }: StageOptions): OnEvent {
  return (event) => {
    if (event.type === "log") onEvent?.(event);
    else {
      meter.phase = `reading: ${event.phase.split(": ").at(-1)}`;
      meter.detail = event.detail ?? {};
      meter.set(before + Math.round((100 * tokens * event.done) / (event.total ?? 1)) / 100);
    }
  };
}

/** The first place where `ids` is not the beginning of `whole`, or null when it is. */
function firstDifference(ids: readonly number[], whole: readonly number[]): number | null {
  const at = ids.findIndex((id, i) => id !== whole[i]);
  return at < 0 ? null : at;
}

/** Files of saves that a kill cut short. The directory is locked, so they are nobody's. */
async function removeLeftovers(path: string): Promise<void> {
  for (const name of await readdir(dirname(path))) {
    if (name.startsWith(`${basename(path)}.`) && name.endsWith(".tmp"))
      await unlink(join(dirname(path), name));
  }
}

/** Shows that time passes while something without progress of its own is waited for. */
async function waiting<T>(phase: string, onEvent: OnEvent | undefined, work: Promise<T>): Promise<T> {
  const meter = new Meter({ stage: "chat", phase, unit: "steps", total: null, onEvent });
  const timer = setInterval(() => meter.emit(), PROGRESS_MS);
  try {
    return await work;
  } finally {
    clearInterval(timer);
  }
}
