import { CLOSE, END_OF_MESSAGE, MEDIA, OPEN, SEPARATOR } from "../text/chat-wording.ts";
import { parseAssistant, type Tokenizer } from "../text/index.ts";
import { close, encodeSegments, open, type Segment, specialId } from "../text/segments.ts";

/** A message's ids as the history may hold them, or why they cannot stand there. */
export type ClosedIds =
  | { readonly ids: readonly number[]; readonly reason: null }
  | { readonly ids: null; readonly reason: string };

/**
 * What the assistant generated, made a whole message by adding to its end: a message that was cut off by the length or by a stop is
 * closed where it stands, also between `<|close|>` and `<|sep|>`. Nothing is taken away, so a state that has read the ids stays good.
 *
 * Refused are ids that would put structure of the model's invention into the history (other messages, images) and calls that were
 * cut off: such a message must be encoded anew from its text.
 */
export function closeMessage(
  tokenizer: Tokenizer,
  generated: readonly number[],
  thinking: boolean,
): ClosedIds {
  const media = new Set(MEDIA.map((literal) => tokenizer.specials.get(literal)));
  if (generated.some((id) => media.has(id))) return refused("has a token that stands for an image");
  const end = specialId(tokenizer, END_OF_MESSAGE);
  const ids = [...generated];
  if (ids.at(-1) !== end) {
    const header = restOfHeader(tokenizer, ids, thinking);
    if (header === null) return refused("was cut off within the name of an element");
    ids.push(...header);
    const closing = closingOf(tokenizer, ids, thinking);
    if (closing === null) return refused("was cut off within a tool call");
    ids.push(...encodeSegments(tokenizer, closing));
  }
  const parsed = parseAssistant(tokenizer, ids, { thinking });
  if (parsed.problems.length > 0) return refused(`deviates from the chat format (${parsed.problems[0]})`);
  return { ids, reason: null };
}

const refused = (reason: string): ClosedIds => ({ ids: null, reason });

/** The ids that complete an opening or closing that was begun; none when none was, null when it is not known which it is. */
function restOfHeader(tokenizer: Tokenizer, ids: readonly number[], thinking: boolean): number[] | null {
  const [opening, closing, separator] = [OPEN, CLOSE, SEPARATOR].map((literal) =>
    specialId(tokenizer, literal),
  );
  const at = ids.findLastIndex((id) => id === opening || id === closing || id === separator);
  if (at < 0 || ids[at] === separator) return [];
  const { unfinished } = parseAssistant(tokenizer, ids.slice(0, at), { thinking });
  // After the thinking the response opens; whatever else may open belongs to tool calls.
  const responseIsDue = unfinished === "message" && thinking && !hasResponse(tokenizer, ids);
  const name = ids[at] === closing ? unfinished : responseIsDue ? "response" : null;
  if (name === null) return null;
  const whole = tokenizer.encode(name);
  const begun = ids.slice(at + 1);
  if (!begun.every((id, i) => id === whole[i])) return null;
  return [...whole.slice(begun.length), separator!];
}

/** What closes the message from where the ids stop; null within a tool call, which must not be taken for a finished one. */
function closingOf(tokenizer: Tokenizer, ids: readonly number[], thinking: boolean): Segment[] | null {
  const end: Segment[] = [...close("message"), { special: END_OF_MESSAGE }];
  const emptyResponse = [...open("response"), ...close("response")];
  switch (parseAssistant(tokenizer, ids, { thinking }).unfinished) {
    case "think":
      return [...close("think"), ...emptyResponse, ...end];
    case "response":
      return [...close("response"), ...end];
    case "message":
      return thinking && !hasResponse(tokenizer, ids) ? [...emptyResponse, ...end] : end;
    default:
      // "message" itself may be closed, with only the end missing.
      return ids.at(-1) === specialId(tokenizer, SEPARATOR) && endsWithMessage(tokenizer, ids)
        ? [{ special: END_OF_MESSAGE }]
        : null;
  }
}

function hasResponse(tokenizer: Tokenizer, ids: readonly number[]): boolean {
  return indexOfIds(ids, encodeSegments(tokenizer, open("response"))) >= 0;
}

function endsWithMessage(tokenizer: Tokenizer, ids: readonly number[]): boolean {
  const closing = encodeSegments(tokenizer, close("message"));
  return closing.every((id, i) => ids[ids.length - closing.length + i] === id);
}

function indexOfIds(ids: readonly number[], part: readonly number[]): number {
  return ids.findIndex((_, at) => part.every((id, i) => ids[at + i] === id));
}
