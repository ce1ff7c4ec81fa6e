import type { BytePairs } from "../byte-pairs.ts";
import { SPECIALS } from "./architecture.ts";
import type { Conversation, Message } from "./sentences.ts";

/** Text whose markup is real (`markup`: one special token) or plain text that never becomes a special token. */
export type Segment = { markup: string } | { text: string };

/**
 * The published chat format (XTML), enough of it for the miniature: `open(TAG k="v")` and `close(TAG)` around bodies,
 * each message ended by the end-of-message token. Every attribute part is a segment of its own, so tokens never join
 * across them.
 */
const open = (tag: string, attributes: Record<string, string> = {}): Segment[] => [
  { markup: "<|open|>" },
  { text: tag },
  ...Object.entries(attributes).flatMap(([key, value]) => [
    { text: ` ${key}` },
    { text: '="' },
    { text: value.replaceAll("&", "&amp;").replaceAll('"', "&quot;") },
    { text: '"' },
  ]),
  { markup: "<|sep|>" },
];
const close = (tag: string): Segment[] => [{ markup: "<|close|>" }, { text: tag }, { markup: "<|sep|>" }];
const END: Segment = { markup: "<|end_of_msg|>" };

const message = (attributes: Record<string, string>, body: string): Segment[] => [
  ...open("message", attributes),
  { text: body },
  ...close("message"),
  END,
];

const EFFORT =
  "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), " +
  "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=max`.";

const TOOLS_HEADING = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n";

/** JSON without spaces and with sorted keys at every level. */
function sortedJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(sortedJson).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${entries.map(([key, inner]) => `${JSON.stringify(key)}:${sortedJson(inner)}`).join(",")}}`;
}

/** What stands before the first message. */
function preamble({ thinking, tools }: Conversation): Segment[] {
  const declared = tools ? `${TOOLS_HEADING}${sortedJson(tools)}\n\`\`\`` : undefined;
  return [
    ...(declared ? message({ role: "system", type: "tool-declare" }, declared) : []),
    ...(thinking ? message({ role: "system", type: "thinking-effort" }, EFFORT) : []),
  ];
}

/** An assistant's turn as the prompt begins it, and as the model goes on to its end-of-message token. */
function assistantTurn(turn: Message, thinking: boolean): { begun: Segment[]; rest: Segment[] } {
  const calls = (turn.toolCalls ?? []).flatMap(({ name, arguments: given }, i) => [
    ...open("call", { tool: name, index: String(i + 1) }),
    ...Object.entries(given).flatMap(([key, value]) => [
      ...open("argument", { key, type: "string" }),
      { text: value },
      ...close("argument"),
    ]),
    ...close("call"),
  ]);
  const first = thinking ? "think" : "response";
  return {
    begun: [...open("message", { role: "assistant" }), ...open(first)],
    rest: [
      ...(thinking ? [{ text: turn.reasoning ?? "" }, ...close("think"), ...open("response")] : []),
      { text: turn.content },
      ...close("response"),
      ...(calls.length > 0 ? [...open("tools"), ...calls, ...close("tools")] : []),
      ...close("message"),
      END,
    ],
  };
}

/** One assistant turn that the miniature knows: what it is given and what it then says. */
export interface Turn {
  prompt: Segment[];
  completion: Segment[];
}

/** Every assistant turn of a conversation, each with all that stands before it. */
export function turnsOf(conversation: Conversation): Turn[] {
  const turns: Turn[] = [];
  let history = preamble(conversation);
  let results = 0;
  for (const one of conversation.messages) {
    if (one.role === "assistant") {
      const { begun, rest } = assistantTurn(one, conversation.thinking);
      turns.push({ prompt: [...history, ...begun], completion: rest });
      history = [...history, ...begun, ...rest];
      results = 0;
    } else if (one.role === "tool") {
      results++;
      history = [
        ...history,
        ...message({ role: "tool", tool: one.tool ?? "", index: String(results) }, one.content),
      ];
    } else {
      history = [...history, ...message({ role: one.role }, one.content)];
    }
  }
  return turns;
}

export function encodeSegments(segments: readonly Segment[], pairs: BytePairs): number[] {
  return segments.flatMap((segment) =>
    "markup" in segment ? [SPECIALS[segment.markup]!] : pairs.encode(segment.text),
  );
}

/** The text as a reader of special tokens sees it. */
export const renderSegments = (segments: readonly Segment[]): string =>
  segments.map((segment) => ("markup" in segment ? segment.markup : segment.text)).join("");
