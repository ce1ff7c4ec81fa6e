import { StageError, type StageOptions } from "@k3/stage";
import { END_OF_MESSAGE, END_OF_SEQUENCE } from "../text/chat-wording.ts";
import { type AssistantEvent, AssistantParser, type Message, type Sampler } from "../text/index.ts";
import { costText, isComplete, messageOf } from "./answer.ts";
import type { ConversationLog, Kept, Measured } from "./log.ts";
import { closeParts, openParts, type Parts } from "./parts.ts";
import type { ConversationRecord } from "./records.ts";
import { changeBetween, sameModel, setupRecord } from "./setup.ts";
import type { StateKeeper } from "./state-keeper.ts";
import { Transcript } from "./transcript.ts";
import type {
  ConversationOpenOptions,
  KeptTurn,
  Opened,
  Recomputation,
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
  readonly #parts: Parts;
  readonly #transcript: Transcript;
  readonly #log: ConversationLog;
  readonly #keeper: StateKeeper;
  readonly #sampler: Sampler;
  readonly #endIds: readonly number[];
  #prefillRate: Measured | null;
  /** Why the state of before cannot be used, when what stands before the messages changed; until the next answer. */
  #change: string | null = null;
  /** The last turn was open when the conversation was opened. */
  #killed = false;
  #busy = false;
  #opened: Opened = { turns: 0, reused_tokens: 0, recompute: null };

  private constructor(options: ConversationOpenOptions, parts: Parts) {
    const { model, tokenizer } = options;
    const { setup, kept } = parts;
    this.#options = options;
    this.#parts = parts;
    this.#log = parts.log;
    this.#keeper = parts.keeper;
    this.#sampler = parts.sampler;
    this.#transcript = new Transcript(tokenizer, setup, model.plan.contextTokens, kept?.turns ?? []);
    this.#prefillRate = kept?.prefill ?? null;
    const ends = [END_OF_MESSAGE, END_OF_SEQUENCE];
    this.#endIds = ends.flatMap((literal) => tokenizer.specials.get(literal) ?? []);
  }

  /**
   * Opens a conversation, the kept one when `dir` holds one. Takes one session of the model.
   *
   * Throws E_LOCKED when another process has it open, E_DATA when its file is damaged or of another version, E_SPACE when the disk has
   * no room for the state, E_CONFIG when tokenizer and model do not fit each other, E_USAGE for unusable options. A state that
   * cannot be used is no error: see `opened`.
   */
  static async open(options: ConversationOpenOptions): Promise<Conversation> {
    const parts = await openParts(options);
    try {
      const conversation = new Conversation(options, parts);
      await conversation.#begin(parts.kept);
      return conversation;
    } catch (error) {
      await closeParts(parts);
      throw error;
    }
  }

  /** What opening found: how much is used again, and what has to be read again and why. */
  get opened(): Opened {
    return this.#opened;
  }

  /** The conversation so far in the OpenAI shape, thinking included; the answer of an open turn is not in it. */
  get messages(): readonly Message[] {
    return this.#transcript.messages;
  }

  /** The last turn when it can go on (`continue`), or null. */
  get unfinished(): Unfinished | null {
    const last = this.#transcript.last;
    // Under another beginning the model would not have come to these words.
    if (last === undefined || last.ids === null || this.#change !== null) return null;
    const tokens = last.ids.length;
    if (last.end === null) return { why: this.#killed ? "killed" : "interrupted", tokens };
    const { finishReason } = last.end;
    return finishReason === "length" || finishReason === "interrupted" ? { why: finishReason, tokens } : null;
  }

  /** Calls of the last answer that have no result yet. */
  get openCalls(): readonly { id: string; name: string; arguments: unknown }[] {
    return this.#transcript.openCalls;
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
      const { thinking } = this.#transcript.setup;
      const begun = { messages, maxTokens, thinking, ids: [], end: null };
      const { length: promptTokens } = this.#transcript.promptOf({ ...begun, promptTokens: 0 });
      const turn: KeptTurn = { ...begun, promptTokens };
      await this.#log.append({
        type: "turn",
        messages: messages as RecordOf<"turn">["messages"],
        prompt_tokens: turn.promptTokens,
        max_tokens: maxTokens,
      });
      this.#transcript.add(turn);
      return this.#answer(turn, options);
    });
  }

  /** Goes on with the last turn where it stopped, to the same answer as if it had not. Throws E_USAGE when it is finished. */
  async continue(options: TurnOptions = {}): Promise<Turn> {
    return this.#exclusively(async () => {
      const turn = this.#transcript.last;
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
      this.#transcript.clear();
      this.#change = null;
      await this.#keeper.reset();
    });
  }

  /** Closes files, lock and session, not the model. */
  close(): Promise<void> {
    return closeParts(this.#parts);
  }

  async #begin(kept: Kept | null): Promise<void> {
    const { onEvent } = this.#options;
    const record = setupRecord(this.#transcript.setup, this.#options, this.#sampler);
    const last = this.#transcript.last;
    this.#killed = last?.end === null;
    this.#change = kept === null || last === undefined ? null : changeBetween(kept.setup, record);
    // Ids of another model may mean anything.
    if (kept && !sameModel(kept.setup, record)) for (const turn of this.#transcript.turns) turn.ids = null;
    if (this.#change !== null && this.#killed) await this.#end(last!, "interrupted");
    if (kept === null || this.#change !== null || kept.setup.seed !== record.seed)
      await this.#log.append(record);
    if (last === undefined) return;
    const history = this.unfinished ? this.#transcript.wanted(last) : this.#transcript.history();
    await this.#keeper.load(history, this.#options);
    const reused = this.#keeper.session.position;
    const recompute = reused > 0 ? null : this.#recomputation(history.length);
    this.#opened = { turns: this.#transcript.turns.length, reused_tokens: reused, recompute };
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
        const wanted = this.#transcript.wanted(turn);
        reused = await this.#keeper.prepare(wanted, events);
        if (reused === 0 && (this.#transcript.turns.length > 1 || turn.ids!.length > 0)) {
          recomputed = this.#recomputation(wanted.length);
          const told =
            this.#opened.recompute !== null && this.#opened.turns === this.#transcript.turns.length - 1;
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
    const last = this.#transcript.last;
    if (last?.end === null) await this.#end(last, "interrupted");
    this.#killed = false;
  }

  /** Why no state could be used, in the most telling words there are, and what reading `tokens` again costs. */
  #recomputation(tokens: number): Recomputation {
    const rewritten = this.#transcript.rewritten();
    const last = rewritten === null ? null : `the last answer ${rewritten} and is written anew`;
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
