import type { ThinkingEffort } from "./messages.ts";

/** The fixed texts of the chat format (k3-model 5.4), in one place because encoding and parsing must agree on them. */

export const TOOLS_HEADING = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n";

export const NEW_TOOLS_HEADING =
  "## New Tools Available\n" +
  "The system dynamically extends the toolset via lazy-loading.\n" +
  "You have access to all existing and extended tools.\n" +
  "Here are the specs for the extended tools.\n\n```json\n";

export const TOOLS_END = "\n```";

export const THINKING_EFFORTS: readonly ThinkingEffort[] = ["low", "medium", "high", "max"];

export function thinkingEffortText(effort: ThinkingEffort): string {
  return (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), " +
    "supported values include `low`, `medium`, `high`, and `max`.\n" +
    `Now the system is invoked with \`thinking_effort=${effort}\`.`
  );
}

export const TOOL_CHOICE_TEXT = {
  required: "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
  none: "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
} as const;

/** The special tokens that carry structure. */
export const OPEN = "<|open|>";
export const CLOSE = "<|close|>";
export const SEPARATOR = "<|sep|>";
export const END_OF_MESSAGE = "<|end_of_msg|>";
/** A second end id: tokenizer_config.json calls it the end of the sequence (k3-model section 4, trap 13). */
export const END_OF_SEQUENCE = "[EOS]";
/** Special tokens that stand for images; a text-only engine has nothing to put in their place. */
export const MEDIA = ["<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"] as const;
