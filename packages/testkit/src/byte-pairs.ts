import { splitPieces } from "./pattern.ts";

/** Token bytes as a string of one character per byte, which Maps can compare. */
export type ByteString = string;

const utf8 = (text: string): ByteString => Buffer.from(text, "utf8").toString("latin1");

/**
 * A plain byte-pair encoder for building and checking the miniature, apart from the engine's tokenizer on purpose.
 * Quadratic in the length of a piece; it knows no caps and no special tokens.
 */
export class BytePairs {
  /** Token bytes to id; a complete vocabulary has all 256 single bytes. */
  readonly ranks: ReadonlyMap<ByteString, number>;
  readonly #tokens: ByteString[] = [];

  constructor(ranks: ReadonlyMap<ByteString, number>) {
    this.ranks = ranks;
    for (const [token, rank] of ranks) this.#tokens[rank] = token;
  }

  /** Reads the lines `base64(bytes) SPACE rank` of a tiktoken.model. */
  static parse(model: string): BytePairs {
    const ranks = new Map<ByteString, number>();
    for (const line of model.split("\n")) {
      const [token, rank] = line.split(" ");
      if (token) ranks.set(Buffer.from(token, "base64").toString("latin1"), Number(rank));
    }
    return new BytePairs(ranks);
  }

  encode(text: string): number[] {
    return splitPieces(text).flatMap((piece) => this.#encodePiece(utf8(piece)));
  }

  /** The text of ids; special ids (not in the vocabulary) are left out, broken characters become U+FFFD. */
  decode(ids: readonly number[]): string {
    return Buffer.from(ids.map((id) => this.#tokens[id] ?? "").join(""), "latin1").toString("utf8");
  }

  #encodePiece(piece: ByteString): number[] {
    const whole = this.ranks.get(piece);
    if (whole !== undefined) return [whole];
    return mergeAll([...piece], this.ranks).map((part) => this.ranks.get(part)!);
  }
}

/** Merges adjacent parts whose concatenation has the lowest rank, again and again, the leftmost first at a tie. */
function mergeAll(parts: ByteString[], ranks: ReadonlyMap<ByteString, number>): ByteString[] {
  for (;;) {
    let lowest = Number.POSITIVE_INFINITY;
    let at = -1;
    for (let i = 0; i + 1 < parts.length; i++) {
      const rank = ranks.get(parts[i]! + parts[i + 1]!) ?? Number.POSITIVE_INFINITY;
      if (rank < lowest) {
        lowest = rank;
        at = i;
      }
    }
    if (at < 0) return parts;
    parts.splice(at, 2, parts[at]! + parts[at + 1]!);
  }
}

/**
 * Learns `size` ranks from a text: the 256 bytes, then the most frequent adjacent pair inside pieces, over and over
 * (the smaller byte string first at a tie). Throws when the text is too poor for so many.
 */
export function learnBytePairs(text: string, size: number): BytePairs {
  const ranks = new Map<ByteString, number>();
  for (let byte = 0; byte < 256; byte++) ranks.set(String.fromCharCode(byte), byte);
  const counts = new Map<ByteString, number>();
  for (const piece of splitPieces(text)) counts.set(utf8(piece), (counts.get(utf8(piece)) ?? 0) + 1);
  const words = [...counts].map(([word, count]) => ({ parts: [...word], count }));
  while (ranks.size < size) {
    const pairs = new Map<ByteString, number>();
    for (const { parts, count } of words) {
      for (let i = 0; i + 1 < parts.length; i++) {
        const pair = parts[i]! + parts[i + 1]!;
        pairs.set(pair, (pairs.get(pair) ?? 0) + count);
      }
    }
    let best: [pair: ByteString, count: number] | undefined;
    for (const [pair, count] of pairs) {
      if (best === undefined || count > best[1] || (count === best[1] && pair < best[0]))
        best = [pair, count];
    }
    if (best === undefined) throw new Error(`the text yields only ${ranks.size} of ${size} tokens`);
    ranks.set(best[0], ranks.size);
    for (const word of words) {
      for (let i = 0; i + 1 < word.parts.length; i++) {
        if (word.parts[i]! + word.parts[i + 1]! === best[0]) word.parts.splice(i, 2, best[0]);
      }
    }
  }
  return new BytePairs(ranks);
}

/** The lines of a tiktoken.model. */
export function tiktokenModel({ ranks }: BytePairs): string {
  const lines = [...ranks].sort(([, a], [, b]) => a - b);
  return lines
    .map(([token, rank]) => `${Buffer.from(token, "latin1").toString("base64")} ${rank}\n`)
    .join("");
}
