import { formatSeconds } from "@k3/stage";
import {
  type AssistantMessage,
  type AssistantOutput,
  parseAssistant,
  type Tokenizer,
} from "../text/index.ts";
import type { KeptTurn, Recomputation } from "./types.ts";

/** Whether nothing more is to be generated: the message has ended, or all its tokens are used. */
export function isComplete({ ids, maxTokens }: KeptTurn, endIds: readonly number[]): boolean {
  return ids === null || ids.length >= maxTokens || endIds.includes(ids.at(-1) ?? -1);
}

/** What a turn's ids say, as a message of the history. Thinking is kept; a call that was cut off is not one. */
export function messageOf(
  tokenizer: Tokenizer,
  turn: KeptTurn,
): { finishReason: AssistantOutput["finishReason"]; message: AssistantMessage } {
  const ids = turn.ids ?? [];
  const { thinking, content, toolCalls, finishReason } = parseAssistant(tokenizer, ids, {
    thinking: turn.thinking,
  });
  return {
    finishReason,
    message: {
      role: "assistant",
      content,
      ...(turn.thinking ? { reasoning_content: thinking } : {}),
      ...(toolCalls.length > 0 ? { tool_calls: toolCalls } : {}),
    },
  };
}

/** "the conversation has to be read again, 812 tokens, about 4 min: the tools changed". */
export function costText({ reason, tokens, seconds }: Recomputation): string {
  const time = seconds === null ? "how long that takes is not known yet" : `about ${formatSeconds(seconds)}`;
  return `the whole conversation has to be read again, ${tokens} tokens, ${time}: ${reason}`;
}
