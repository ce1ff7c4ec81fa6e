import { StageError } from "@k3/stage";
import { type Message, refuseMedia, type Tokenizer } from "../text/index.ts";
import { encodeHistory } from "./history.ts";
import type { KeptTurn, Setup } from "./types.ts";

/** What was said in a conversation, and which ids that is to the model. */
export class Transcript {
  readonly setup: Setup;
  readonly #tokenizer: Tokenizer;
  readonly #contextTokens: number;
  #turns: KeptTurn[];

  constructor(tokenizer: Tokenizer, setup: Setup, contextTokens: number, turns: KeptTurn[]) {
    this.setup = setup;
    this.#tokenizer = tokenizer;
    this.#contextTokens = contextTokens;
    this.#turns = turns;
  }

  get turns(): readonly KeptTurn[] {
    return this.#turns;
  }

  get last(): KeptTurn | undefined {
    return this.#turns.at(-1);
  }

  add(turn: KeptTurn): void {
    this.#turns.push(turn);
  }

  clear(): void {
    this.#turns = [];
  }

  /** In the OpenAI shape, thinking included; the answer of an open turn is not in it. */
  get messages(): readonly Message[] {
    const { system } = this.setup;
    const begin: Message[] = system === null ? [] : [{ role: "system", content: system }];
    return [
      ...begin,
      ...this.#turns.flatMap(({ messages, end }) => [...messages, ...(end ? [end.message] : [])]),
    ];
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

  /** The ids of all of it. */
  history(): readonly number[] {
    return encodeHistory(this.#tokenizer, this.setup, this.#turns, false).ids;
  }

  /** The ids before the answer of one turn more. Throws E_USAGE when they cannot be encoded or have no room. */
  promptOf(turn: KeptTurn): readonly number[] {
    return this.#prompt([...this.#turns, turn]);
  }

  /** What the state must have read before the next token of the last turn is chosen. */
  wanted(turn: KeptTurn): readonly number[] {
    return [...this.#prompt([...this.#turns.slice(0, -1), { ...turn, end: null }]), ...turn.ids!];
  }

  /** Why the last answer stands there in other ids than those that were generated, or null. */
  rewritten(): string | null {
    const ended = this.#turns.filter(({ end }) => end !== null);
    const rewritten = encodeHistory(this.#tokenizer, this.setup, ended, false).rewritten.at(-1);
    return rewritten?.turn === ended.length ? rewritten.reason : null;
  }

  #prompt(turns: readonly KeptTurn[]): readonly number[] {
    const { ids } = encodeHistory(this.#tokenizer, this.setup, turns, true);
    refuseMedia(this.#tokenizer, ids);
    if (ids.length <= this.#contextTokens) return ids;
    throw new StageError(
      "E_USAGE",
      `the conversation would have ${ids.length} tokens; the context has room for ${this.#contextTokens}`,
      { hint: "open the model with a larger contextTokens (k3 chat --context), or begin a new conversation" },
    );
  }
}
