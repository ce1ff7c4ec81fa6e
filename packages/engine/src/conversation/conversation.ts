import { type Lock, lockFile, StageError, type StageOptions, throwIfAborted } from "@k3/stage";
import { END_OF_MESSAGE, END_OF_SEQUENCE } from "../text/chat-wording.ts";
import {
  type AssistantEvent,
  AssistantParser,
  createSampler,
  type Message,
  refuseMedia,
  type Sampler,
} from "../text/index.ts";
import { costText, isComplete, messageOf } from "./answer.ts";
import { encodeHistory } from "./history.ts";
import { ConversationLog, type Kept, logPath, type Measured } from "./log.ts";
import type { ConversationRecord } from "./records.ts";
import { changeBetween, sameModel, setupOf, setupRecord } from "./setup.ts";
import { StateKeeper } from "./state-keeper.ts";
import type {
  ConversationOpenOptions,
  KeptTurn,
  Opened,
  Recomputation,
  Setup,
  Turn,
  TurnOptions,
  Unfinished,
} from "./types.ts";

type RecordOf<T> = Extract<ConversationRecord, { type: T }>;

const MAX_TOKENS = 1024;

/**
 * A conversation with a model. With a directory it outlives the process, however that ends: what is said is on disk before it is
 * answered, every token of the answer as it comes, the model's state after every turn and now and then within. Opened again, it
 * reads only what the state has not seen. Calls must not overlap.
 */
export class Conversation {
  readonly #options: ConversationOpenOptions;
  readonly #setup: Setup;
  readonly #log: ConversationLog;
  readonly #keeper: StateKeeper;
  readonly #sampler: Sampler;
  readonly #lock: Lock | null;
  readonly #endIds: readonly number[];
  #turns: KeptTurn[];
  #prefillRate: Measured | null;
  /** Why the state of before cannot be used, when what stands before the messages changed; until the next answer. */
  #change: string | null = null;
  /** The last turn was open when the conversation was opened. */
  #killed = false;
  #busy = false;
  #opened: Opened = { turns: 0, reused_tokens: 0, recompute: null };

  private constructor(
    options: ConversationOpenOptions,
    parts: { setup: Setup; log: ConversationLog; keeper: StateKeeper; sampler: Sampler; lock: Lock | null },
    kept: Kept | null,
  ) {
    this.#options = options;
    this.#setup = parts.setup;
    this.#log = parts.log;
    this.#keeper = parts.keeper;
    this.#sampler = parts.sampler;
    this.#lock = parts.lock;
    this.#turns = kept?.turns ?? [];
    this.#prefillRate = kept?.prefill ?? null;
    const { specials } = options.tokenizer;
    this.#endIds = [END_OF_MESSAGE, END_OF_SEQUENCE].flatMap((literal) => specials.get(literal) ?? []);
  }

  /**
   * Opens a conversation, the kept one when `dir` holds one. Takes one session of the model.
   *
   * Throws E_LOCKED when another process has it open, E_DATA when its file is damaged or of another version, E_SPACE when the disk has
   * no room for the state, E_CONFIG when tokenizer and model do not fit each other, E_USAGE for unusable options. A state that
   * cannot be used is no error: see `opened`.
   */
  static async open(options: ConversationOpenOptions): Promise<Conversation> {
    const { model, tokenizer, dir = null, sampling } = options;
    if (tokenizer.vocabSize > model.config.vocabSize) {
      throw new StageError(
        "E_CONFIG",
        `the tokenizer has ${tokenizer.vocabSize} ids, the model ${model.config.vocabSize}`,
      );
    }
    throwIfAborted(options.signal);
    const lock = dir === null ? null : await lockFile(`${dir}/lock`, "talking");
    let log: ConversationLog | undefined;
    let keeper: StateKeeper | undefined;
    try {
      const opened = await ConversationLog.open(dir === null ? null : logPath(dir));
      log = opened.log;
      keeper = new StateKeeper(model, dir === null ? null : `${dir}/state.k3`);
      await keeper.requireSpace();
      const kept = opened.kept;
      const sampler = createSampler(
        sampling?.seed === undefined && kept ? { ...sampling, seed: BigInt(kept.setup.seed) } : sampling,
      );
      if (kept && sampler.seed === BigInt(kept.setup.seed)) sampler.restoreState(kept.sampler);
      const setup = setupOf(options, kept);
      const conversation = new Conversation(options, { setup, log, keeper, sampler, lock }, kept);
      await conversation.#begin(kept);
      return conversation;
    } catch (error) {
      keeper?.close();
      await log?.close();
      await lock?.release();
      throw error;
    }
  }

  /** What opening found: how much is used again, and what has to be read again and why. */
  get opened(): Opened {
    return this.#opened;
  }

  /** The conversation so far in the OpenAI shape, thinking included; the answer of an open turn is not in it. */
  get messages(): readonly Message[] {
    const { system } = this.#setup;
    const begin: Message[] = system === null ? [] : [{ role: "system", content: system }];
    return [
      ...begin,
      ...this.#turns.flatMap(({ messages, end }) => [...messages, ...(end ? [end.message] : [])]),
    ];
  }

  /** The last turn when it can go on (`continue`), or null. */
  get unfinished(): Unfinished | null {
    const last = this.#turns.at(-1);
    // Under another beginning the model would not have come to these words.
    if (last === undefined || last.ids === null || this.#change !== null) return null;
    const tokens = last.ids.length;
    if (last.end === null) return { why: this.#killed ? "killed" : "interrupted", tokens };
    const { finishReason } = last.end;
    return finishReason === "length" || finishReason === "interrupted" ? { why: finishReason, tokens } : null;
  }

  /** Calls of the last answer that have no result yet. */
  get openCalls(): readonly { id: string; name: string; arguments: unknown }[] {
    const calls = this.#turns.at(-1)?.end?.message.tool_calls ?? [];
    return calls.map((call) => ({
      id: call.id ?? "",
      name: call.function.name,
      arguments: call.function.arguments,
    }));
  }

  /**
   * Says something (a user's text, or messages: tool results, system texts, several at once) and generates the answer.
   *
   * A turn stopped by `stop` or `signal` keeps what was generated, with `finish_reason: "interrupted"`; one that reached maxTokens or the
   * end of the context has "length". Both can be continued, or left: with the next message the answer is closed where it stands.
   * Throws E_USAGE for messages that cannot be said (images) or have no room, with nothing kept of them; E_READ when a weight cannot be
   * read: the turn then stays open and `continue` tries again.
   */
  async say(what: string | Message | readonly Message[], options: TurnOptions = {}): Promise<Turn> {
    return this.#exclusively(async () => {
      const messages = typeof what === "string" ? [{ role: "user" as const, content: what }] : [what].flat();
      if (messages.length === 0) throw new StageError("E_USAGE", "there is nothing to say");
      await this.#endOpenTurn();
      const maxTokens = this.#maxTokens(options);
      const begun = { messages, maxTokens, thinking: this.#setup.thinking, ids: [], end: null };
      const { length: promptTokens } = this.#prompt([...this.#turns, { ...begun, promptTokens: 0 }]);
      const turn: KeptTurn = { ...begun, promptTokens };
      await this.#log.append({
        type: "turn",
        messages: messages as RecordOf<"turn">["messages"],
        prompt_tokens: turn.promptTokens,
        max_tokens: maxTokens,
      });
      this.#turns.push(turn);
      return this.#answer(turn, options);
    });
  }

  /** Goes on with the last turn where it stopped, to the same answer as if it had not. Throws E_USAGE when it is finished. */
  async continue(options: TurnOptions = {}): Promise<Turn> {
    return this.#exclusively(async () => {
      const turn = this.#turns.at(-1);
      if (turn === undefined || this.unfinished === null) {
        throw new StageError("E_USAGE", "there is no unfinished answer to go on with");
      }
      if (turn.end !== null) {
        turn.maxTokens = turn.ids!.length + this.#maxTokens(options);
        await this.#log.append({ type: "continue", max_tokens: turn.maxTokens });
        turn.end = null;
      }
      return this.#answer(turn, options);
    });
  }

  /** Forgets all turns; system text, tools and thinking stay. */
  async reset(): Promise<void> {
    await this.#exclusively(async () => {
      await this.#log.append({ type: "reset" });
      this.#turns = [];
      this.#change = null;
      await this.#keeper.reset();
    });
  }

  /** Closes files, lock and session, not the model. */
  async close(): Promise<void> {
    this.#keeper.close();
    await this.#log.close();
    await this.#lock?.release();
  }

  async #begin(kept: Kept | null): Promise<void> {
    const { onEvent } = this.#options;
    const record = setupRecord(this.#setup, this.#options, this.#sampler);
    const last = this.#turns.at(-1);
    this.#killed = last?.end === null;
    this.#change = kept === null || last === undefined ? null : changeBetween(kept.setup, record);
    // Ids of another model may mean anything.
    if (kept && !sameModel(kept.setup, record)) for (const turn of this.#turns) turn.ids = null;
    if (this.#change !== null && this.#killed) await this.#end(last!, "interrupted");
    if (kept === null || this.#change !== null || kept.setup.seed !== record.seed)
      await this.#log.append(record);
    if (last === undefined) return;
    const history = this.unfinished ? this.#wanted(last) : this.#history();
    await this.#keeper.load(history, this.#options);
    const reused = this.#keeper.session.position;
    const recompute = reused > 0 ? null : this.#recomputation(history.length);
    this.#opened = { turns: this.#turns.length, reused_tokens: reused, recompute };
    if (recompute) onEvent?.({ type: "log", level: "warn", stage: "chat", message: costText(recompute) });
  }

  async #answer(turn: KeptTurn, options: TurnOptions): Promise<Turn> {
    const events: StageOptions = {
      signal: options.signal ?? this.#options.signal,
      onEvent: options.onEvent ?? this.#options.onEvent,
    };
    const parser = new AssistantParser(this.#options.tokenizer, { thinking: turn.thinking });
    const show = (pieces: AssistantEvent[]) => {
      for (const piece of pieces) if (piece.type !== "end") options.onPiece?.(piece);
    };
    for (const id of turn.ids!) show(parser.push(id));
    const work = { prefill: { tokens: 0, seconds: 0 }, decode: { tokens: 0, seconds: 0 } };
    let reused = 0;
    let recomputed: Recomputation | null = null;
    let interrupted = false;
    this.#killed = false;
    try {
      if (!isComplete(turn, this.#endIds)) {
        const wanted = this.#wanted(turn);
        reused = await this.#keeper.prepare(wanted, events);
        if (reused === 0 && (this.#turns.length > 1 || turn.ids!.length > 0)) {
          recomputed = this.#recomputation(wanted.length);
          const told = this.#opened.recompute !== null && this.#opened.turns === this.#turns.length - 1;
          const message = costText(recomputed);
          if (!told) events.onEvent?.({ type: "log", level: "warn", stage: "chat", message });
        }
        this.#change = null;
        work.prefill = await this.#keeper.reach(wanted, events, options.stop);
        if (work.prefill.tokens > 0) this.#prefillRate = work.prefill;
        const onId = (id: number) => show(parser.push(id));
        interrupted = await this.#generate(turn, { ...events, stop: options.stop }, onId, work.decode);
      }
    } catch (error) {
      if (!(error instanceof StageError && error.code === "E_INTERRUPTED")) throw error;
      interrupted = true;
    }
    show(parser.end());
    const { finishReason, message } = await this.#end(turn, interrupted ? "interrupted" : "length", work);
    await this.#keeper.save({ onEvent: events.onEvent });
    const { thinking, content, toolCalls, problems } = parser.output;
    return {
      ...{ thinking, content, tool_calls: toolCalls, finish_reason: finishReason, message },
      prompt_tokens: turn.promptTokens,
      reused_tokens: reused,
      prefill_tokens: work.prefill.tokens,
      generated_ids: [...turn.ids!],
      ...{ recomputed, problems },
      seconds: { prefill: work.prefill.seconds, decode: work.decode.seconds },
    };
  }

  /** Generates until the message ends or something ends it; true when that was `stop`. */
  async #generate(
    turn: KeptTurn,
    { signal, onEvent, stop }: TurnOptions,
    onId: (id: number) => void,
    decode: Measured,
  ): Promise<boolean> {
    const { session } = this.#keeper;
    if (stop?.aborted) return true;
    // The last token needs no room: it is chosen now, and read with what follows.
    const room = this.#options.model.plan.contextTokens - session.ids.length + 1;
    const maxTokens = Math.min(turn.maxTokens - turn.ids!.length, room);
    const sampler = this.#sampler;
    let state = sampler.saveState();
    let started = performance.now();
    for await (const { id } of session.generate({
      maxTokens,
      sampler,
      endIds: this.#endIds,
      signal,
      onEvent,
    })) {
      decode.seconds += (performance.now() - started) / 1000;
      decode.tokens += 1;
      const changed = sampler.saveState() === state ? undefined : sampler.saveState();
      state = sampler.saveState();
      await this.#log.appendToken(id, changed);
      turn.ids!.push(id);
      onId(id);
      if (stop?.aborted && !isComplete(turn, this.#endIds)) return true;
      await this.#keeper.saveWhenDue({ onEvent });
      started = performance.now();
    }
    return false;
  }

  /** Ends a turn where it stands; `unended` is why, when its message has no end. */
  async #end(
    turn: KeptTurn,
    unended: "length" | "interrupted",
    work: { prefill: Measured; decode: Measured } = {
      prefill: { tokens: 0, seconds: 0 },
      decode: { tokens: 0, seconds: 0 },
    },
  ): Promise<NonNullable<KeptTurn["end"]>> {
    const { finishReason, message } = messageOf(this.#options.tokenizer, turn);
    turn.end = { finishReason: finishReason === "length" ? unended : finishReason, message };
    await this.#log.append({
      type: "end",
      finish_reason: turn.end.finishReason,
      message: message as RecordOf<"end">["message"],
      ...work,
    });
    return turn.end;
  }

  /** A turn left open by a failure, or by a kill and not continued, ends where it stands. */
  async #endOpenTurn(): Promise<void> {
    const last = this.#turns.at(-1);
    if (last?.end === null) await this.#end(last, "interrupted");
    this.#killed = false;
  }

  #history(): readonly number[] {
    return encodeHistory(this.#options.tokenizer, this.#setup, this.#turns, false).ids;
  }

  /** The ids before the answer of the last of these turns. Throws E_USAGE when they cannot be encoded or have no room. */
  #prompt(turns: readonly KeptTurn[]): readonly number[] {
    const { tokenizer, model } = this.#options;
    const { ids } = encodeHistory(tokenizer, this.#setup, turns, true);
    refuseMedia(tokenizer, ids);
    const { contextTokens } = model.plan;
    if (ids.length <= contextTokens) return ids;
    throw new StageError(
      "E_USAGE",
      `the conversation would have ${ids.length} tokens; the context has room for ${contextTokens}`,
      { hint: "open the model with a larger contextTokens (k3 chat --context), or begin a new conversation" },
    );
  }

  /** What the state must have read before the next token of the last turn is chosen. */
  #wanted(turn: KeptTurn): readonly number[] {
    return [...this.#prompt([...this.#turns.slice(0, -1), { ...turn, end: null }]), ...turn.ids!];
  }

  /** Why no state could be used, in the most telling words there are, and what reading `tokens` again costs. */
  #recomputation(tokens: number): Recomputation {
    const { tokenizer } = this.#options;
    const ended = this.#turns.filter(({ end }) => end !== null);
    const rewritten = encodeHistory(tokenizer, this.#setup, ended, false).rewritten.at(-1);
    const last =
      rewritten?.turn === ended.length ? `the last answer ${rewritten.reason} and is written anew` : null;
    const reason = this.#change ?? last ?? this.#keeper.lost ?? "there is no state";
    const rate = this.#prefillRate;
    return { reason, tokens, seconds: rate === null ? null : (tokens * rate.seconds) / rate.tokens };
  }

  #maxTokens({ maxTokens = this.#options.maxTokens ?? MAX_TOKENS }: TurnOptions): number {
    if (Number.isSafeInteger(maxTokens) && maxTokens > 0) return maxTokens;
    throw new StageError("E_USAGE", `maxTokens is ${maxTokens}; it must be a whole number of at least 1`);
  }

  async #exclusively<T>(job: () => Promise<T>): Promise<T> {
    if (this.#busy) throw new StageError("E_USAGE", "the conversation is busy with another call");
    this.#busy = true;
    try {
      return await job();
    } finally {
      this.#busy = false;
    }
  }
}
