import { StageError } from "@k3/stage";
import { CLOSE, END_OF_MESSAGE, OPEN, SEPARATOR } from "./chat-wording.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** A piece of a conversation: a special token by its literal, or text that is encoded by itself and never holds special tokens. */
export type Segment = { readonly special: string } | { readonly text: string };

export type Attribute = readonly [name: string, value: string];

/**
 * The opening of an element. Tag, ` name`, `="`, value and `"` are segments of their own (k3-model 5.4), so a value cannot
 * merge with what surrounds it. In values `&` becomes `&amp;`, then `"` becomes `&quot;`.
 */
export function open(tag: string, attributes: readonly Attribute[] = []): Segment[] {
  const inner = attributes.flatMap(([name, value]): Segment[] => [
    { text: ` ${name}` },
    { text: '="' },
    { text: value.replaceAll("&", "&amp;").replaceAll('"', "&quot;") },
    { text: '"' },
  ]);
  return [{ special: OPEN }, { text: tag }, ...inner, { special: SEPARATOR }];
}

export function close(tag: string): Segment[] {
  return [{ special: CLOSE }, { text: tag }, { special: SEPARATOR }];
}

export function element(tag: string, attributes: readonly Attribute[], body: readonly Segment[]): Segment[] {
  return [...open(tag, attributes), ...body, ...close(tag)];
}

export function message(attributes: readonly Attribute[], body: readonly Segment[]): Segment[] {
  return [...element("message", attributes, body), { special: END_OF_MESSAGE }];
}

/** Segments to ids, each encoded apart. Throws E_CONFIG when the vocabulary lacks a special token of the chat format. */
export function encodeSegments(tokenizer: Tokenizer, segments: readonly Segment[]): number[] {
  const ids: number[] = [];
  for (const segment of segments) {
    if ("special" in segment) ids.push(specialId(tokenizer, segment.special));
    else for (const id of tokenizer.encode(segment.text)) ids.push(id);
  }
  return ids;
}

/** The id of a special token. Throws E_CONFIG when the vocabulary does not name it. */
export function specialId(tokenizer: Tokenizer, literal: string): number {
  const id = tokenizer.specials.get(literal);
  if (id === undefined) {
    throw new StageError(
      "E_CONFIG",
      `the vocabulary has no special token ${literal}, which the chat format needs`,
      {
        hint: "check added_tokens_decoder in tokenizer_config.json",
      },
    );
  }
  return id;
}
