/** Chat messages in the OpenAI shape, with `reasoning_content` for an assistant's thinking. */

export interface TextPart {
  readonly type: "text";
  readonly text: string;
}

/** Any other part (`image_url`, `input_audio`, ...) can be written down but is refused when encoded. */
export interface OtherPart {
  readonly type: string;
}

export type MessageContent = string | readonly (TextPart | OtherPart)[];

/** A tool as declared to the model: any JSON object, usually `{type: "function", function: {name, description, parameters}}`. */
export type ToolDeclaration = Readonly<Record<string, unknown>>;

export interface ToolCall {
  readonly id?: string | undefined;
  readonly type?: "function" | undefined;
  readonly function: {
    readonly name: string;
    /** A mapping from argument names to JSON values, or one JSON text that is passed through as it is. */
    readonly arguments: Readonly<Record<string, unknown>> | string;
  };
}

export interface SystemMessage {
  readonly role: "system";
  readonly content?: MessageContent | null | undefined;
  readonly name?: string | undefined;
  /** Tools that become available at this place of the conversation; such a message has no content. */
  readonly tools?: readonly ToolDeclaration[] | undefined;
}

export interface UserMessage {
  readonly role: "user";
  readonly content: MessageContent;
  readonly name?: string | undefined;
}

export interface AssistantMessage {
  readonly role: "assistant";
  readonly content?: MessageContent | null | undefined;
  /** What the assistant thought before it answered. Keep it for earlier turns: the model expects it. */
  readonly reasoning_content?: string | null | undefined;
  readonly name?: string | undefined;
  readonly tool_calls?: readonly ToolCall[] | null | undefined;
}

export interface ToolMessage {
  readonly role: "tool";
  readonly content: MessageContent;
  /** The call this answers; the tool's name comes from there unless `name` is given. */
  readonly tool_call_id?: string | undefined;
  readonly name?: string | undefined;
}

export type Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage;

export type ThinkingEffort = "low" | "medium" | "high" | "max";

export interface ConversationOptions {
  readonly tools?: readonly ToolDeclaration[] | undefined;
  /** Whether the model thinks before it answers. Default true. */
  readonly thinking?: boolean | undefined;
  /** Default "max". */
  readonly thinkingEffort?: ThinkingEffort | undefined;
  /** End with the opening of the assistant's next message. Default true. */
  readonly generationPrompt?: boolean | undefined;
  /** Default "auto", which adds nothing. */
  readonly toolChoice?: "auto" | "none" | "required" | undefined;
  /** Only `{type: "text"}`: how the release words other formats is not known, so they are refused. */
  readonly responseFormat?: { readonly type: string } | undefined;
}
