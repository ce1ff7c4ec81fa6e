import { StageError } from "@k3/stage";
import {
  NEW_TOOLS_HEADING,
  THINKING_EFFORTS,
  TOOL_CHOICE_TEXT,
  TOOLS_END,
  TOOLS_HEADING,
  thinkingEffortText,
} from "./chat-wording.ts";
import { type MarkupEvent, MarkupReader } from "./markup.ts";
import type { ConversationOptions, Message, ThinkingEffort, ToolDeclaration } from "./messages.ts";
import { AssistantParser } from "./parse-assistant.ts";
import type { Tokenizer } from "./tokenizer.ts";

export interface ParsedConversation {
  readonly messages: readonly Message[];
  /** The options that encodeConversation was given, as far as the ids show them. */
  readonly options: ConversationOptions;
}

/**
 * Reads a whole encoded conversation back into messages and options; encoding those again gives the same ids. What the format does not
 * carry is lost: call ids (they become `NAME:INDEX`) and the division of a content into parts.
 * Throws E_DATA, saying where, when the ids are not a conversation as encodeConversation writes it.
 */
export function parseConversation(tokenizer: Tokenizer, ids: Iterable<number>): ParsedConversation {
  const reader = new MarkupReader(tokenizer);
  const events: MarkupEvent[] = [];
  for (const id of ids) events.push(...reader.push(id));
  events.push(...reader.finish());
  const conversation = new ConversationBuilder(tokenizer);
  let current: MarkupEvent[] = [];
  for (const event of events) {
    current.push(event);
    if (event.kind !== "end") continue;
    conversation.addMessage(current);
    current = [];
  }
  conversation.addGenerationPrompt(current);
  return { messages: conversation.messages, options: conversation.options };
}

class ConversationBuilder {
  readonly messages: Message[] = [];
  readonly options: { -readonly [K in keyof ConversationOptions]: ConversationOptions[K] } = {
    thinking: false,
    generationPrompt: false,
  };
  readonly #tokenizer: Tokenizer;
  #count = 0;

  constructor(tokenizer: Tokenizer) {
    this.#tokenizer = tokenizer;
  }

  addMessage(events: readonly MarkupEvent[]): void {
    this.#count += 1;
    const first = events[0];
    if (first?.kind !== "open" || first.tag !== "message")
      throw this.#refused("does not begin with its opening");
    const role = first.attributes.get("role");
    if (role === "assistant") this.#addAssistant(events);
    else {
      const text = this.#plainBody(events.slice(1));
      const name = first.attributes.get("name");
      const named = name === undefined ? {} : { name };
      if (role === "user") this.messages.push({ role, content: text, ...named });
      else if (role === "tool")
        this.messages.push({ role, content: text, name: first.attributes.get("tool") ?? "" });
      else if (role !== "system") throw this.#refused(`has the role ${JSON.stringify(role)}`);
      else {
        const type = first.attributes.get("type");
        if (type === undefined) this.messages.push({ role, content: text, ...named });
        else this.#addTyped(type, text);
      }
    }
  }

  addGenerationPrompt(events: readonly MarkupEvent[]): void {
    if (events.length === 0) return;
    this.#count += 1;
    const [message, channel, ...rest] = events;
    const opens =
      message?.kind === "open" && message.tag === "message" && message.attributes.get("role") === "assistant";
    if (
      !opens ||
      channel?.kind !== "open" ||
      rest.length > 0 ||
      (channel.tag !== "think" && channel.tag !== "response")
    ) {
      throw this.#refused("is unfinished and is not a generation prompt");
    }
    this.options.generationPrompt = true;
    if (channel.tag === "think" && !this.options.thinking)
      throw this.#refused("thinks in a conversation without thinking");
  }

  #addAssistant(events: readonly MarkupEvent[]): void {
    const parser = new AssistantParser(this.#tokenizer);
    for (const event of events) parser.take(event);
    const { thinking, content, toolCalls, problems, name } = parser.output;
    if (problems.length > 0) throw this.#refused(problems.join("; "));
    this.messages.push({
      role: "assistant",
      content,
      ...(this.options.thinking ? { reasoning_content: thinking } : {}),
      ...(name === null ? {} : { name }),
      ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
    });
  }

  #addTyped(type: string, text: string): void {
    if (type === "tool-declare") {
      const later = text.startsWith(NEW_TOOLS_HEADING);
      const heading = later ? NEW_TOOLS_HEADING : TOOLS_HEADING;
      if (!text.startsWith(heading) || !text.endsWith(TOOLS_END))
        throw this.#refused("declares tools in other words");
      const tools = this.#tools(text.slice(heading.length, -TOOLS_END.length));
      if (later) this.messages.push({ role: "system", tools });
      else this.options.tools = tools;
    } else if (type === "thinking-effort") {
      const effort = THINKING_EFFORTS.find(
        (candidate: ThinkingEffort) => thinkingEffortText(candidate) === text,
      );
      if (effort === undefined) throw this.#refused("states the thinking effort in other words");
      this.options.thinking = true;
      this.options.thinkingEffort = effort;
    } else if (type === "tool-choice") {
      const choice = (["required", "none"] as const).find(
        (candidate) => TOOL_CHOICE_TEXT[candidate] === text,
      );
      if (choice === undefined) throw this.#refused("states the tool choice in other words");
      this.options.toolChoice = choice;
    } else throw this.#refused(`is a system message of the type ${JSON.stringify(type)}`);
  }

  #tools(json: string): ToolDeclaration[] {
    try {
      const tools: unknown = JSON.parse(json);
      if (Array.isArray(tools)) return tools as ToolDeclaration[];
    } catch (error) {
      throw this.#refused("declares tools that are not JSON", error);
    }
    throw this.#refused("declares tools that are not a list");
  }

  /** The text of a message without inner elements: text, the closing, the end. */
  #plainBody(events: readonly MarkupEvent[]): string {
    const closing = events.at(-2);
    const body = events.slice(0, -2);
    if (closing?.kind !== "close" || closing.tag !== "message") throw this.#refused("is not closed");
    return body
      .map((event) => {
        if (event.kind === "text") return event.text;
        throw this.#refused("has markup in its text");
      })
      .join("");
  }

  #refused(what: string, cause?: unknown): StageError {
    return new StageError("E_DATA", `not an encoded conversation: message ${this.#count} ${what}`, { cause });
  }
}
