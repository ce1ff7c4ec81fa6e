import { StageError } from "@k3/stage";

/** Special tokens have the ids baseTokens .. baseTokens + 255, whatever a config names. */
export const SPECIAL_TOKENS = 256;
const LONGEST_LITERAL = 256;
const RESERVED = /^<\|reserved_token_(\d+)\|>$/;

/** The 256 special tokens: the named ones, and `<|reserved_token_ID|>` with the absolute id for the others (k3-model 5.1). */
export class SpecialTokens {
  readonly idOf: ReadonlyMap<string, number>;
  readonly #baseTokens: number;
  readonly #bytes: readonly Uint8Array[];
  readonly #pattern: RegExp;

  /** Throws E_CONFIG for an id outside the 256, an id or literal given twice, and literals that are empty or another slot's name. */
  constructor(baseTokens: number, named: Iterable<readonly [string, number]>) {
    const literals = new Array<string | undefined>(SPECIAL_TOKENS);
    const seen = new Set<string>();
    for (const [literal, id] of named) {
      const slot = id - baseTokens;
      const problem = refusal(literal, id, slot, seen.has(literal), literals[slot]);
      if (problem !== null) {
        throw new StageError(
          "E_CONFIG",
          `special token ${JSON.stringify(literal).slice(0, 80)}: ${problem}`,
          {
            details: { literal, id },
          },
        );
      }
      literals[slot] = literal;
      seen.add(literal);
    }
    const all = Array.from(literals, (literal, slot) => literal ?? `<|reserved_token_${baseTokens + slot}|>`);
    this.idOf = new Map(all.map((literal, slot) => [literal, baseTokens + slot]));
    this.#baseTokens = baseTokens;
    this.#bytes = all.map((literal) => new TextEncoder().encode(literal));
    const longestFirst = [...all].sort((a, b) => b.length - a.length);
    this.#pattern = new RegExp(longestFirst.map(escapeForPattern).join("|"), "gu");
  }

  /** The literal of a special id in UTF-8, or null when the id is none of the 256. */
  bytesOf(id: number): Uint8Array | null {
    return this.#bytes[id - this.#baseTokens] ?? null;
  }

  /** Cuts a text at the literals of special tokens, the longest at each place, and reports both kinds of parts in order. */
  split(text: string, ordinary: (text: string) => void, special: (id: number) => void): void {
    let start = 0;
    for (const match of text.matchAll(this.#pattern)) {
      if (match.index > start) ordinary(text.slice(start, match.index));
      special(this.idOf.get(match[0])!);
      start = match.index + match[0].length;
    }
    if (start < text.length) ordinary(text.slice(start));
  }
}

function refusal(
  literal: string,
  id: number,
  slot: number,
  repeated: boolean,
  occupant: string | undefined,
): string | null {
  if (!Number.isSafeInteger(id) || slot < 0 || slot >= SPECIAL_TOKENS) {
    return `its id ${id} is not one of the ${SPECIAL_TOKENS} after the base vocabulary`;
  }
  if (literal.length === 0) return "its literal is empty";
  if (literal.length > LONGEST_LITERAL) return `its literal is longer than ${LONGEST_LITERAL}`;
  if (!literal.isWellFormed()) return "its literal has a lone surrogate";
  if (repeated) return "it is given twice";
  if (occupant !== undefined) return `its id ${id} is that of ${JSON.stringify(occupant)}`;
  const reserved = RESERVED.exec(literal);
  if (reserved !== null && reserved[1] !== String(id))
    return `this is the name of id ${reserved[1]}, not of ${id}`;
  return null;
}

function escapeForPattern(literal: string): string {
  return literal.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}
