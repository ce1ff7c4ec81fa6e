import { CLOSE, END_OF_MESSAGE, END_OF_SEQUENCE, OPEN, SEPARATOR } from "./chat-wording.ts";
import { specialId } from "./segments.ts";
import type { StreamingDecoder, Tokenizer } from "./tokenizer.ts";

export type MarkupEvent =
  | { readonly kind: "open"; readonly tag: string; readonly attributes: ReadonlyMap<string, string> }
  | { readonly kind: "close"; readonly tag: string }
  | { readonly kind: "text"; readonly text: string }
  /** The end of a message. */
  | { readonly kind: "end" }
  /** Something that the format does not have; it was skipped. */
  | { readonly kind: "problem"; readonly problem: string };

const HEADER = /^([^\s"=]+)((?: [^\s"=]+="[^"]*")*)$/;
const ATTRIBUTE = / ([^\s"=]+)="([^"]*)"/g;

/**
 * Reads the markup of the chat format from ids as they come. Structure is recognised by id only, so text that spells markup stays
 * text. What stands between `<|open|>` or `<|close|>` and its `<|sep|>` is never reported as text, also when the ids end there.
 */
export class MarkupReader {
  readonly #tokenizer: Tokenizer;
  readonly #decoder: StreamingDecoder;
  readonly #open: number;
  readonly #close: number;
  readonly #separator: number;
  readonly #ends: ReadonlySet<number | undefined>;
  /** Which header is being read, and the ids of it so far. */
  #header: "open" | "close" | null = null;
  #headerIds: number[] = [];

  /** Throws E_CONFIG when the vocabulary lacks a special token of the format. */
  constructor(tokenizer: Tokenizer) {
    this.#tokenizer = tokenizer;
    this.#decoder = tokenizer.decoder();
    this.#open = specialId(tokenizer, OPEN);
    this.#close = specialId(tokenizer, CLOSE);
    this.#separator = specialId(tokenizer, SEPARATOR);
    this.#ends = new Set([specialId(tokenizer, END_OF_MESSAGE), tokenizer.specials.get(END_OF_SEQUENCE)]);
  }

  /** What became certain with this id. Throws E_USAGE for an id outside the vocabulary. */
  push(id: number): MarkupEvent[] {
    if (id === this.#open || id === this.#close) {
      const before = this.#interrupted("another one begins");
      this.#header = id === this.#open ? "open" : "close";
      return before;
    }
    if (this.#ends.has(id)) return [...this.#interrupted("the message ends"), { kind: "end" }];
    if (id === this.#separator) return this.#separated();
    if (this.#header === null) return textEvent(this.#decoder.push(id));
    this.#headerIds.push(id);
    return [];
  }

  /** The rest when no more ids come; an unfinished header is dropped. */
  finish(): MarkupEvent[] {
    return this.#interrupted("the ids end");
  }

  #separated(): MarkupEvent[] {
    const kind = this.#header;
    if (kind === null)
      return [
        ...this.#flush(),
        { kind: "problem", problem: "<|sep|> without an opening or closing before it" },
      ];
    const text = this.#tokenizer.decode(this.#headerIds);
    this.#header = null;
    this.#headerIds = [];
    const parsed = HEADER.exec(text);
    if (parsed === null || (kind === "close" && parsed[2] !== "")) {
      return [
        {
          kind: "problem",
          problem: `malformed ${kind === "open" ? "opening" : "closing"} ${JSON.stringify(text)}`,
        },
      ];
    }
    const tag = parsed[1]!;
    if (kind === "close") return [{ kind: "close", tag }];
    const attributes = new Map<string, string>();
    for (const [, name, value] of parsed[2]!.matchAll(ATTRIBUTE))
      attributes.set(name!, unescapeAttribute(value!));
    return [{ kind: "open", tag, attributes }];
  }

  #interrupted(why: string): MarkupEvent[] {
    if (this.#header === null) return this.#flush();
    const problem = `${this.#header === "open" ? "an opening" : "a closing"} is unfinished: ${why}`;
    this.#header = null;
    this.#headerIds = [];
    return [{ kind: "problem", problem }];
  }

  #flush(): MarkupEvent[] {
    return textEvent(this.#decoder.end());
  }
}

function textEvent(text: string): MarkupEvent[] {
  return text === "" ? [] : [{ kind: "text", text }];
}

/** Both escapes in one pass, so that an escaped `&quot;` in the value stays what it was. */
function unescapeAttribute(value: string): string {
  return value.replace(/&(amp|quot);/g, (_, name: string) => (name === "amp" ? "&" : '"'));
}
