import { StageError } from "@k3/stage";
import { mergeBytePairs } from "./byte-pair.ts";
import { MAX_BASE_TOKENS, RankTable } from "./rank-table.ts";
import { SPECIAL_TOKENS, SpecialTokens } from "./special-tokens.ts";
import { cutAtCaps, type LengthCaps, RELEASED_CAPS, splitPieces } from "./split-pattern.ts";
import { decodeUtf8, incompleteSuffix, splitByValidity } from "./utf8.ts";
import { checkKnownPrompt, readVocabulary } from "./vocabulary.ts";

export interface EncodeOptions {
  /** Let literals of special tokens in the text become those tokens. Never set it for text from users. Default false. */
  readonly allowSpecial?: boolean | undefined;
}

/** Decodes ids one by one; what it returns is always whole characters. */
export interface StreamingDecoder {
  /** The text that became certain with this id, possibly "". Throws E_USAGE for an id outside the vocabulary. */
  push(id: number): string;
  /** The rest: U+FFFD when the ids stopped within a character, else "". The decoder can then be used again. */
  end(): string;
}

export interface Tokenizer {
  /** Number of base tokens (byte-pair vocabulary); special tokens have the 256 ids after them. */
  readonly baseTokens: number;
  /** baseTokens + 256: the number of ids, and of rows of the model's embedding. */
  readonly vocabSize: number;
  /** Literal -> id of every special token, the reserved ones included. */
  readonly specials: ReadonlyMap<string, number>;
  /**
   * Text to ids; nothing is added or normalised. A lone surrogate in a string is encoded as U+FFFD. In bytes, runs of valid UTF-8 are
   * text and every other byte is the token of that single byte, so that `decodeBytes` gives the same bytes back.
   * Throws E_USAGE for anything but text or bytes, E_CONFIG when the vocabulary lacks the token of a byte.
   */
  encode(text: string | Uint8Array, options?: EncodeOptions): number[];
  /** Ids to text, U+FFFD for bytes that are not UTF-8. Throws E_USAGE for an id outside the vocabulary. */
  decode(ids: Iterable<number>): string;
  /** Ids to the bytes they stand for; special tokens are their literals. Throws E_USAGE as `decode`. */
  decodeBytes(ids: Iterable<number>): Uint8Array;
  /** A decoder for ids as they come. */
  decoder(): StreamingDecoder;
}

export interface TokenizerOptions {
  /** Token bytes and rank (= id), each once; ranks lie in [0, baseTokens) and may have gaps. */
  readonly ranks: Iterable<readonly [Uint8Array, number]>;
  readonly baseTokens: number;
  /** Literal -> id in [baseTokens, baseTokens + 256); ids not named become `<|reserved_token_ID|>`. */
  readonly specials: Readonly<Record<string, number>>;
  /** Length caps, by default those of the release (400,000 characters, runs of 25,000). */
  readonly caps?:
    | { readonly maxChars?: number | undefined; readonly maxRun?: number | undefined }
    | undefined;
}

/**
 * Makes a tokenizer from a byte-pair vocabulary. The split pattern and the length caps are those of the released tokenizer.
 * Throws E_USAGE for bad numbers, E_CONFIG for ranks or specials that are repeated, out of range or ambiguous.
 */
export function createTokenizer(options: TokenizerOptions): Tokenizer {
  const { baseTokens } = options;
  if (!Number.isInteger(baseTokens) || baseTokens < 1 || baseTokens > MAX_BASE_TOKENS) {
    throw new StageError(
      "E_USAGE",
      `baseTokens is ${baseTokens}; it must be an integer from 1 to ${MAX_BASE_TOKENS}`,
    );
  }
  const table = new RankTable(baseTokens);
  for (const [bytes, rank] of options.ranks) {
    const refused = table.add(bytes, rank);
    if (refused !== null) throw new StageError("E_CONFIG", `vocabulary: ${refused}`);
  }
  const specials = new SpecialTokens(baseTokens, Object.entries(options.specials));
  return new BytePairTokenizer(table, specials, checkedCaps(options.caps));
}

/**
 * Reads `tiktoken.model` and `tokenizer_config.json` of a model directory (see vocabulary.ts for what is checked). When the
 * vocabulary is the released one, a known prompt is encoded as a self-check.
 * Throws E_DATA or E_CONFIG for files that are missing, malformed or of the wrong size or hash; E_DEFECT when the self-check fails.
 */
export async function loadTokenizer(modelDir: string): Promise<Tokenizer> {
  const vocabulary = await readVocabulary(modelDir);
  const specials = new SpecialTokens(vocabulary.table.baseTokens, vocabulary.specials);
  const tokenizer = new BytePairTokenizer(vocabulary.table, specials, RELEASED_CAPS);
  if (vocabulary.released) checkKnownPrompt(tokenizer);
  return tokenizer;
}

function checkedCaps(caps: TokenizerOptions["caps"]): LengthCaps {
  const maxChars = caps?.maxChars ?? RELEASED_CAPS.maxChars;
  const maxRun = caps?.maxRun ?? RELEASED_CAPS.maxRun;
  for (const [name, value] of Object.entries({ maxChars, maxRun })) {
    if (!Number.isSafeInteger(value) || value < 1) {
      throw new StageError("E_USAGE", `caps.${name} is ${value}; it must be an integer of at least 1`);
    }
  }
  return { maxChars, maxRun };
}

class BytePairTokenizer implements Tokenizer {
  readonly baseTokens: number;
  readonly vocabSize: number;
  readonly specials: ReadonlyMap<string, number>;
  readonly #table: RankTable;
  readonly #special: SpecialTokens;
  readonly #caps: LengthCaps;

  constructor(table: RankTable, special: SpecialTokens, caps: LengthCaps) {
    this.baseTokens = table.baseTokens;
    this.vocabSize = table.baseTokens + SPECIAL_TOKENS;
    this.specials = special.idOf;
    this.#table = table;
    this.#special = special;
    this.#caps = caps;
  }

  encode(text: string | Uint8Array, options: EncodeOptions = {}): number[] {
    const allowSpecial = options.allowSpecial === true;
    const ids: number[] = [];
    if (typeof text === "string") this.#encodeText(text.toWellFormed(), allowSpecial, ids);
    else if (text instanceof Uint8Array) {
      splitByValidity(
        text,
        (run) => this.#encodeText(decodeUtf8(run), allowSpecial, ids),
        (byte) => ids.push(this.#idOf(Uint8Array.of(byte), 0, 1)),
      );
    } else throw new StageError("E_USAGE", `the tokenizer encodes text or bytes, not ${typeof text}`);
    return ids;
  }

  decode(ids: Iterable<number>): string {
    return decodeUtf8(this.decodeBytes(ids));
  }

  decodeBytes(ids: Iterable<number>): Uint8Array {
    const parts: Uint8Array[] = [];
    let length = 0;
    for (const id of ids) {
      const bytes = this.#bytesOf(id);
      parts.push(bytes);
      length += bytes.length;
    }
    const all = new Uint8Array(length);
    let at = 0;
    for (const part of parts) {
      all.set(part, at);
      at += part.length;
    }
    return all;
  }

  decoder(): StreamingDecoder {
    let pending: Uint8Array = new Uint8Array(0);
    return {
      push: (id) => {
        const bytes = concatenate(pending, this.#bytesOf(id));
        const whole = bytes.length - incompleteSuffix(bytes);
        pending = bytes.slice(whole);
        return decodeUtf8(bytes.subarray(0, whole));
      },
      end: () => {
        const rest = decodeUtf8(pending);
        pending = new Uint8Array(0);
        return rest;
      },
    };
  }

  #encodeText(text: string, allowSpecial: boolean, ids: number[]): void {
    if (!allowSpecial) {
      this.#encodeOrdinary(text, ids);
      return;
    }
    this.#special.split(
      text,
      (ordinary) => this.#encodeOrdinary(ordinary, ids),
      (id) => ids.push(id),
    );
  }

  #encodeOrdinary(text: string, ids: number[]): void {
    for (const part of cutAtCaps(text, this.#caps)) {
      // The bytes of a part are made once; a piece is a slice of them.
      const bytes = Buffer.from(part, "utf8");
      const ascii = bytes.length === part.length;
      const emit = (from: number, to: number): void => {
        ids.push(this.#idOf(bytes, from, to));
      };
      let start = 0;
      for (const piece of splitPieces(part)) {
        const end = start + (ascii ? piece.length : utf8Length(piece));
        const whole = this.#table.lookup(bytes, start, end);
        if (whole >= 0) ids.push(whole);
        else mergeBytePairs(this.#table, bytes, start, end, emit);
        start = end;
      }
    }
  }

  #idOf(bytes: Uint8Array, from: number, to: number): number {
    const id = this.#table.lookup(bytes, from, to);
    if (id >= 0) return id;
    // Every part longer than a byte was merged because it is a token, so only a single byte can be missing.
    throw new StageError(
      "E_CONFIG",
      `the vocabulary has no token for the byte 0x${bytes[from]!.toString(16).padStart(2, "0")}`,
    );
  }

  #bytesOf(id: number): Uint8Array {
    const bytes = id >= this.baseTokens ? this.#special.bytesOf(id) : this.#table.bytesOf(id);
    if (bytes === null) {
      throw new StageError("E_USAGE", `token id ${id} is not in the vocabulary of ${this.vocabSize} ids`, {
        details: { id, vocabSize: this.vocabSize },
      });
    }
    return bytes;
  }
}

function utf8Length(text: string): number {
  let length = text.length;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    if (unit < 0x80) continue;
    // A surrogate pair is two units and four bytes: one more byte for each of its units.
    length += unit < 0x800 || (unit >= 0xd800 && unit <= 0xdfff) ? 1 : 2;
  }
  return length;
}

function concatenate(a: Uint8Array, b: Uint8Array): Uint8Array {
  if (a.length === 0) return b;
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}
