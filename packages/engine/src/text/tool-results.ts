import { StageError } from "@k3/stage";
import type { Message, MessageContent, ToolCall, ToolMessage } from "./messages.ts";

/** A tool result with the tool's name and its 1-based index after the last assistant message. */
export interface NumberedResult {
  readonly role: "tool";
  readonly content: MessageContent;
  readonly tool: string;
  readonly index: number;
}

/**
 * The messages with their places, tool results named and numbered (1-based, counted from the last assistant message). Results
 * that follow each other are put into the order of the calls when all their ids name one call each; otherwise they stay as given.
 * Throws E_USAGE for a result whose tool is neither named nor found by its id.
 */
export function* orderedToolResults(
  messages: readonly Message[],
): Generator<[at: number, item: Exclude<Message, ToolMessage> | NumberedResult]> {
  let calls: readonly ToolCall[] = [];
  let index = 0;
  for (let at = 0; at < messages.length; ) {
    const item = messages[at]!;
    if (item.role !== "tool") {
      if (item.role === "assistant") {
        calls = item.tool_calls ?? [];
        index = 0;
      }
      yield [at, item];
      at += 1;
      continue;
    }
    const results: [number, ToolMessage][] = [];
    for (let next = messages[at]; next?.role === "tool"; next = messages[at]) results.push([at++, next]);
    for (const [place, result] of inCallOrder(results, calls)) {
      index += 1;
      const tool = result.name ?? calls.find((call) => isAnsweredBy(call, result))?.function.name;
      if (tool === undefined) {
        throw new StageError("E_USAGE", `message ${place} is the result of an unknown tool`, {
          hint: "give it a name, or the tool_call_id of a call in the assistant message before it",
        });
      }
      yield [place, { role: "tool", content: result.content, tool, index }];
    }
  }
}

function inCallOrder(results: [number, ToolMessage][], calls: readonly ToolCall[]): [number, ToolMessage][] {
  const places = results.map(([, result]) => {
    const matching = calls.flatMap((call, place) => (isAnsweredBy(call, result) ? [place] : []));
    return matching.length === 1 ? matching[0]! : -1;
  });
  if (places.includes(-1)) return results;
  return results
    .map((result, i) => ({ result, place: places[i]! }))
    .sort((a, b) => a.place - b.place)
    .map(({ result }) => result);
}

function isAnsweredBy(call: ToolCall, result: ToolMessage): boolean {
  return call.id !== undefined && call.id === result.tool_call_id;
}
