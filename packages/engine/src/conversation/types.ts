import type { StageOptions } from "@k3/stage";
import type { Model } from "../model.ts";
import type {
  AssistantEvent,
  AssistantMessage,
  Message,
  ParsedToolCall,
  SamplerOptions,
  ThinkingEffort,
  Tokenizer,
  ToolDeclaration,
} from "../text/index.ts";

export interface ConversationOpenOptions extends StageOptions {
  model: Model;
  tokenizer: Tokenizer;
  /** Where the conversation and the model's state are kept; without it both end with the process. */
  dir?: string | undefined;
  /**
   * These four default to what is kept in `dir`, else to: no system text, no tools, thinking, "max". A value that differs from the
   * kept one takes effect, and everything is read again from the start.
   */
  system?: string | undefined;
  tools?: readonly ToolDeclaration[] | undefined;
  thinking?: boolean | undefined;
  thinkingEffort?: ThinkingEffort | undefined;
  /** How tokens are chosen; greedy by default. A kept generator goes on unless another seed is given. */
  sampling?: SamplerOptions | undefined;
  /** Tokens that one turn may generate, default 1024. */
  maxTokens?: number | undefined;
}

/** A piece of the answer as it becomes certain: whole characters, whole calls. */
export type Piece = Exclude<AssistantEvent, { type: "end" }>;

export interface TurnOptions extends StageOptions {
  /** Ends the turn after the pass under way, which keeps the state whole. `signal` ends it within that pass. */
  stop?: AbortSignal | undefined;
  onPiece?: ((piece: Piece) => void) | undefined;
  maxTokens?: number | undefined;
}

/** "interrupted": stopped by a signal, or by the end of the process. */
export type FinishReason = "stop" | "tool_calls" | "length" | "interrupted";

/** Why what was said before has to go through the model again, and what that costs. */
export interface Recomputation {
  reason: string;
  /** Tokens to read that a good state would have spared. */
  tokens: number;
  /** About how long, by the rate last measured; null when none was. */
  seconds: number | null;
}

/** What one turn gave. Seconds are wall clock. */
export interface Turn {
  thinking: string;
  content: string;
  /** Finished calls only; answer them with `{role: "tool", tool_call_id, content}`. */
  tool_calls: readonly ParsedToolCall[];
  finish_reason: FinishReason;
  /** The same as a message of the history. */
  message: AssistantMessage;
  /** All tokens before the answer, and how many of them the state held already. */
  prompt_tokens: number;
  reused_tokens: number;
  /** Tokens that this call read: the end of the turn before, the new messages, the opening of the answer. */
  prefill_tokens: number;
  /** All generated ids of the turn, those from before it was continued included. */
  generated_ids: readonly number[];
  recomputed: Recomputation | null;
  /** Deviations of the model from the chat format. */
  problems: readonly string[];
  seconds: { prefill: number; decode: number };
}

/** A turn that can go on where it stopped. */
export interface Unfinished {
  /** "killed": the process ended within it. */
  why: "killed" | "interrupted" | "length";
  /** Tokens generated so far. */
  tokens: number;
}

/** What opening a kept conversation found. */
export interface Opened {
  turns: number;
  /** Positions of the model's state that are used again. */
  reused_tokens: number;
  recompute: Recomputation | null;
}

/** What stands before the first message. */
export interface Setup {
  readonly system: string | null;
  readonly tools: readonly ToolDeclaration[];
  readonly thinking: boolean;
  readonly thinkingEffort: ThinkingEffort;
}

/** A turn as it is kept: what was said to the assistant, and what it said. */
export interface KeptTurn {
  readonly messages: readonly Message[];
  /** The setup's `thinking` when the turn began: its ids mean something under that only. */
  readonly thinking: boolean;
  readonly promptTokens: number;
  maxTokens: number;
  /** Generated ids; null when they are of another model. */
  ids: number[] | null;
  /** Null while the turn is open. */
  end: { readonly finishReason: FinishReason; readonly message: AssistantMessage } | null;
}
