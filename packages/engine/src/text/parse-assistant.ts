import { type MarkupEvent, MarkupReader } from "./markup.ts";
import { type ParsedToolCall, ToolCallBuilder } from "./parse-tool-call.ts";
import type { Tokenizer } from "./tokenizer.ts";

export interface AssistantOutput {
  /** What the model thought. */
  readonly thinking: string;
  /** The answer. It never holds thinking, tool calls or markup. */
  readonly content: string;
  /** Finished calls, in order. */
  readonly toolCalls: readonly ParsedToolCall[];
  /** The call that was being written when the ids ended, or null. Do not run it. */
  readonly unfinishedToolCall: ParsedToolCall | null;
  /** As in the OpenAI API: "length" when the ids ended before the message did. */
  readonly finishReason: "stop" | "tool_calls" | "length";
  /** The innermost element that was open when the ids ended ("think", "response", "call", ...), or null. */
  readonly unfinished: string | null;
  /** `name` of the message, when the ids begin with its opening and it has one. */
  readonly name: string | null;
  /** Deviations from the format that were passed over, in words. Empty for a message as the model was trained on. */
  readonly problems: readonly string[];
}

export type AssistantEvent =
  | { readonly type: "thinking"; readonly text: string }
  | { readonly type: "content"; readonly text: string }
  | { readonly type: "tool-call"; readonly call: ParsedToolCall }
  | { readonly type: "end" };

export interface ParseOptions {
  /** Whether the generation prompt opened the thinking (as encodeConversation does by default) or the response. Default true. */
  readonly thinking?: boolean | undefined;
}

/** Elements directly within a message; the opening of one closes whatever is open there. */
const TOP_LEVEL = new Set(["think", "response", "tools"]);

/** A model that has lost its way must not fill the memory with reports. */
const MAX_PROBLEMS = 100;

/**
 * Parses what an assistant generated after the generation prompt, complete or cut anywhere; ids that begin with the opening of the message
 * are understood too. Throws E_USAGE for ids outside the vocabulary, E_CONFIG for a vocabulary without the chat's special tokens.
 */
export function parseAssistant(
  tokenizer: Tokenizer,
  ids: Iterable<number>,
  options: ParseOptions = {},
): AssistantOutput {
  const parser = new AssistantParser(tokenizer, options);
  for (const id of ids) parser.push(id);
  parser.end();
  return parser.output;
}

/**
 * The same for ids as they come: `push` returns what became certain (whole characters, finished calls), `end` the rest, and
 * `output` is the result so far.
 */
export class AssistantParser {
  readonly #reader: MarkupReader;
  /** Open elements, outermost first. */
  #stack: string[];
  #thinking = "";
  #content = "";
  readonly #toolCalls: ParsedToolCall[] = [];
  #call: ToolCallBuilder | null = null;
  /** Whether any event came yet. */
  #started = false;
  /** After the opening of a message that is not the assistant's: everything is passed over. */
  #foreign = false;
  #ended = false;
  #name: string | null = null;
  readonly #problems: string[] = [];

  constructor(tokenizer: Tokenizer, options: ParseOptions = {}) {
    this.#reader = new MarkupReader(tokenizer);
    this.#stack = ["message", (options.thinking ?? true) ? "think" : "response"];
  }

  /** Takes the next id; after the end of the message ids are passed over. Throws E_USAGE for an id outside the vocabulary. */
  push(id: number): AssistantEvent[] {
    return this.#reader.push(id).flatMap((event) => this.#take(event));
  }

  /** No more ids come: returns the text that was held back (part of a character). */
  end(): AssistantEvent[] {
    return this.#reader.finish().flatMap((event) => this.#take(event));
  }

  /** For a caller that reads the markup itself (parseConversation). */
  take(event: MarkupEvent): AssistantEvent[] {
    return this.#take(event);
  }

  get output(): AssistantOutput {
    const completed = this.#toolCalls.length > 0 ? "tool_calls" : "stop";
    return {
      thinking: this.#thinking,
      content: this.#content,
      toolCalls: [...this.#toolCalls],
      unfinishedToolCall: this.#call?.build().call ?? null,
      finishReason: this.#ended ? completed : "length",
      unfinished: this.#ended ? null : (this.#stack.at(-1) ?? null),
      name: this.#name,
      problems: [...this.#problems],
    };
  }

  #take(event: MarkupEvent): AssistantEvent[] {
    if (this.#ended) {
      this.#note("ids after the end of the message");
      return [];
    }
    if (event.kind === "end") return this.#end();
    if (this.#foreign) return [];
    const first = !this.#started;
    this.#started = true;
    switch (event.kind) {
      case "open":
        if (event.tag === "message") this.#openedMessage(event.attributes, first);
        else this.#opened(event.tag, event.attributes);
        return [];
      case "close":
        return this.#closed(event.tag);
      case "text":
        return this.#text(event.text);
      case "problem":
        this.#note(event.problem);
        return [];
    }
  }

  #end(): AssistantEvent[] {
    if (this.#stack.length > 0) this.#note(`the message ends within ${this.#stack.at(-1)}`);
    this.#ended = true;
    return [{ type: "end" }];
  }

  #openedMessage(attributes: ReadonlyMap<string, string>, first: boolean): void {
    if (first && attributes.get("role") === "assistant") {
      this.#stack = ["message"];
      this.#name = attributes.get("name") ?? null;
      return;
    }
    // Whatever follows was not said by this assistant in this turn, so none of it may reach the answer.
    this.#note(`another message opens (role ${JSON.stringify(attributes.get("role") ?? null)})`);
    this.#abandonCall();
    this.#stack = [];
    this.#foreign = true;
  }

  #opened(tag: string, attributes: ReadonlyMap<string, string>): void {
    if (TOP_LEVEL.has(tag)) {
      if (this.#stack.length > 1) this.#note(`${tag} opens within ${this.#stack.at(-1)}`);
      this.#abandonCall();
      this.#stack = ["message", tag];
      return;
    }
    if (tag === "call" && this.#stack.at(-1) === "tools") this.#call = new ToolCallBuilder(attributes);
    else if (this.#call === null || !this.#call.open(tag, attributes))
      this.#note(`unexpected element ${tag}`);
    this.#stack.push(tag);
  }

  #closed(tag: string): AssistantEvent[] {
    const at = this.#stack.lastIndexOf(tag);
    if (at < 0) {
      this.#note(`${tag} closes without being open`);
      return [];
    }
    if (at < this.#stack.length - 1) this.#note(`${tag} closes while ${this.#stack.at(-1)} is open`);
    this.#stack.length = at;
    if (this.#call === null || this.#stack.includes("call")) {
      this.#call?.close(tag);
      return [];
    }
    if (tag !== "call") {
      this.#abandonCall();
      return [];
    }
    const { call, problems } = this.#call.build();
    this.#call = null;
    for (const problem of problems) this.#note(problem);
    this.#toolCalls.push(call);
    return [{ type: "tool-call", call }];
  }

  #abandonCall(): void {
    if (this.#call === null) return;
    this.#note("a tool call is unfinished");
    this.#call = null;
  }

  #text(text: string): AssistantEvent[] {
    if (this.#stack.includes("think")) {
      this.#thinking += text;
      return [{ type: "thinking", text }];
    }
    if (this.#stack.includes("response")) return this.#answer(text);
    if (this.#stack.includes("tools")) {
      if (!this.#call?.text(text) && text.trim() !== "")
        this.#note(`text outside of arguments: ${JSON.stringify(text)}`);
      return [];
    }
    if (text.trim() === "") return [];
    // The thinking is closed, so this is an answer whose opening the model left out.
    this.#note(`text outside of any element: ${JSON.stringify(text)}`);
    return this.#answer(text);
  }

  #note(problem: string): void {
    if (this.#problems.length < MAX_PROBLEMS && this.#problems.at(-1) !== problem)
      this.#problems.push(problem);
  }

  #answer(text: string): AssistantEvent[] {
    this.#content += text;
    return [{ type: "content", text }];
  }
}
