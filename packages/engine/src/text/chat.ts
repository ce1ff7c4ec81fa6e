import { StageError } from "@k3/stage";
import { canonicalJson } from "./canonical-json.ts";
import {
  MEDIA,
  NEW_TOOLS_HEADING,
  THINKING_EFFORTS,
  TOOL_CHOICE_TEXT,
  TOOLS_END,
  TOOLS_HEADING,
  thinkingEffortText,
} from "./chat-wording.ts";
import type {
  AssistantMessage,
  ConversationOptions,
  Message,
  MessageContent,
  ToolCall,
  ToolDeclaration,
  ToolMessage,
} from "./messages.ts";
import { type Attribute, element, encodeSegments, message, open, type Segment } from "./segments.ts";
import type { Tokenizer } from "./tokenizer.ts";
import { type NumberedResult, orderedToolResults } from "./tool-results.ts";

/**
 * A conversation as the ids that the model was trained on (XTML, k3-model 5.4): tools, thinking effort, the messages, a trailing
 * tool choice, and the opening of the assistant's next message. Special tokens stand for structure only; whatever
 * is in a message, a name or a tool is text. Throws E_USAGE for messages and options that cannot be expressed, images among them.
 */
export function encodeConversation(
  tokenizer: Tokenizer,
  messages: readonly Message[],
  options: ConversationOptions = {},
): number[] {
  return encodeSegments(tokenizer, conversationSegments(messages, options));
}

/**
 * The same as text for people to read. Do not encode it: markup typed by a user looks like structure here.
 * Throws E_USAGE as encodeConversation.
 */
export function renderConversation(messages: readonly Message[], options: ConversationOptions = {}): string {
  return conversationSegments(messages, options)
    .map((segment) => ("special" in segment ? segment.special : segment.text))
    .join("");
}

/** The conversation as segments, which is what both of the above are made of. Throws E_USAGE. */
export function conversationSegments(
  messages: readonly Message[],
  options: ConversationOptions = {},
): Segment[] {
  const thinking = options.thinking ?? true;
  const effort = options.thinkingEffort ?? "max";
  if (!THINKING_EFFORTS.includes(effort)) {
    throw usage(
      `thinkingEffort is ${JSON.stringify(effort)}; it must be one of ${THINKING_EFFORTS.join(", ")}`,
    );
  }
  const parts: Segment[][] = [];
  if (options.tools !== undefined && options.tools.length > 0) {
    parts.push(toolDeclaration(TOOLS_HEADING, options.tools));
  }
  if (thinking) parts.push(systemMessage("thinking-effort", thinkingEffortText(effort)));
  for (const [at, item] of orderedToolResults(messages)) parts.push(messageSegments(item, at, thinking));
  parts.push(trailingMessages(options));
  if (options.generationPrompt ?? true) {
    parts.push(open("message", [["role", "assistant"]]), open(thinking ? "think" : "response"));
  }
  return parts.flat();
}

/** Throws E_USAGE when ids ask for an image: the engine is text-only and has nothing to put in the place of `<|media_pad|>`. */
export function refuseMedia(tokenizer: Tokenizer, ids: Iterable<number>): void {
  const media = new Map(MEDIA.map((literal) => [tokenizer.specials.get(literal), literal]));
  for (const id of ids) {
    const literal = media.get(id);
    if (literal !== undefined) throw imageRefused(`id ${id} is ${literal}, which stands for an image`);
  }
}

function systemMessage(type: string, text: string): Segment[] {
  return message(
    [
      ["role", "system"],
      ["type", type],
    ],
    [{ text }],
  );
}

function toolDeclaration(heading: string, tools: readonly ToolDeclaration[]): Segment[] {
  return systemMessage("tool-declare", heading + canonicalJson(tools) + TOOLS_END);
}

function trailingMessages(options: ConversationOptions): Segment[] {
  if (options.responseFormat !== undefined && options.responseFormat.type !== "text") {
    throw usage(`responseFormat ${JSON.stringify(options.responseFormat.type)} is not supported`, {
      hint: "how the released chat format words it is not known, and a guess would mislead the model; ask for the format in a message",
    });
  }
  const choice = options.toolChoice ?? "auto";
  if (choice === "auto") return [];
  if (choice !== "none" && choice !== "required") {
    throw usage(`toolChoice is ${JSON.stringify(choice)}; it must be "auto", "none" or "required"`);
  }
  return systemMessage("tool-choice", TOOL_CHOICE_TEXT[choice]);
}

/** `at` is an item's place in the conversation, for messages; a tool result carries its name and index. */
function messageSegments(
  item: Exclude<Message, ToolMessage> | NumberedResult,
  at: number,
  thinking: boolean,
): Segment[] {
  switch (item.role) {
    case "system":
      if (item.tools !== undefined && item.tools.length > 0) {
        if (plainText(item.content, at) !== "") {
          throw usage(
            `message ${at} declares tools and has content; put the content into a message of its own`,
          );
        }
        return toolDeclaration(NEW_TOOLS_HEADING, item.tools);
      }
      return message(roleAttributes(item), [{ text: plainText(item.content, at) }]);
    case "user":
      return message(roleAttributes(item), [{ text: plainText(item.content, at) }]);
    case "assistant":
      return message(roleAttributes(item), assistantBody(item, at, thinking));
    case "tool":
      return message(
        [
          ["role", "tool"],
          ["tool", item.tool],
          ["index", String(item.index)],
        ],
        [{ text: plainText(item.content, at) }],
      );
    default:
      throw usage(
        `message ${at} has the role ${JSON.stringify((item as { role?: unknown }).role)}; roles are system, user, assistant and tool`,
      );
  }
}

function roleAttributes(item: { role: string; name?: string | undefined }): Attribute[] {
  const role: Attribute = ["role", item.role];
  return item.name === undefined ? [role] : [role, ["name", item.name]];
}

function assistantBody(item: AssistantMessage, at: number, thinking: boolean): Segment[] {
  // In thinking mode the element is there even when nothing was thought.
  const think = thinking ? element("think", [], [{ text: item.reasoning_content ?? "" }]) : [];
  const response = element("response", [], [{ text: plainText(item.content, at) }]);
  const calls = item.tool_calls ?? [];
  const tools =
    calls.length > 0
      ? element(
          "tools",
          [],
          calls.flatMap((call, index) => callSegments(call, index + 1, at)),
        )
      : [];
  return [...think, ...response, ...tools];
}

function callSegments(call: ToolCall, index: number, at: number): Segment[] {
  const { name, arguments: args } = call.function ?? {};
  if (typeof name !== "string") throw usage(`message ${at}: tool call ${index} has no function name`);
  const attributes: Attribute[] = [
    ["tool", name],
    ["index", String(index)],
  ];
  if (typeof args === "string")
    return element("call", attributes, element("json", [["type", "object"]], [{ text: args }]));
  if (typeof args !== "object" || args === null || Array.isArray(args)) {
    throw usage(`message ${at}: the arguments of tool call ${index} are neither a mapping nor a JSON text`);
  }
  const body = Object.entries(args)
    .filter(([, value]) => value !== undefined)
    .flatMap(([key, value]) => {
      const described: Attribute[] = [
        ["key", key],
        ["type", jsonType(value)],
      ];
      return element("argument", described, [
        { text: typeof value === "string" ? value : jsonText(value, at) },
      ]);
    });
  return element("call", attributes, body);
}

function jsonText(value: unknown, at: number): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value);
  } catch (error) {
    throw usage(`message ${at} has a tool argument without a JSON form`, { cause: error });
  }
  if (text === undefined) throw usage(`message ${at} has a tool argument without a JSON form`);
  return text;
}

function jsonType(value: unknown): string {
  if (value === null) return "null";
  return Array.isArray(value) ? "array" : typeof value;
}

function plainText(content: MessageContent | null | undefined, at: number): string {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") return content;
  if (!Array.isArray(content))
    throw usage(`the content of message ${at} is neither text nor a list of parts`);
  return content
    .map((part: { type?: unknown; text?: unknown }) => {
      if (part.type === "text" && typeof part.text === "string") return part.text;
      if (part.type === "text") throw usage(`message ${at} has a text part without text`);
      throw imageRefused(`message ${at} has a part of type ${JSON.stringify(part.type)}`);
    })
    .join("");
}

function imageRefused(what: string): StageError {
  return usage(`${what}; images and other media are not supported, only text`, {
    hint: "leave the part out or describe it in words; the vision tower of the model is not run",
  });
}

function usage(text: string, options: { hint?: string; cause?: unknown } = {}): StageError {
  return new StageError("E_USAGE", text, options);
}
