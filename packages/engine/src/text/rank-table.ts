/** Ranks and positions share one float64 in the merge heap, so ranks stay far below 2^21. */
export const MAX_BASE_TOKENS = 1 << 20;

const ABSENT = -1;

/**
 * The base vocabulary: token bytes <-> rank (= id), packed. All bytes lie in one buffer and an open-addressing hash
 * table holds ranks, so 163,584 tokens take about 5 MB and looking up a slice of a text allocates nothing.
 */
export class RankTable {
  readonly baseTokens: number;
  /** Length in bytes of the longest token; longer slices cannot be tokens. */
  longest = 0;
  #count = 0;
  #bytes = new Uint8Array(1 << 16);
  #used = 0;
  readonly #starts: Uint32Array;
  readonly #lengths: Uint32Array;
  readonly #slots: Int32Array;
  readonly #mask: number;
  readonly #single = new Int32Array(256).fill(ABSENT);
  readonly #double = new Int32Array(65536).fill(ABSENT);

  /** `baseTokens` bounds the ranks: 0 <= rank < baseTokens <= MAX_BASE_TOKENS (the caller has checked it). */
  constructor(baseTokens: number) {
    this.baseTokens = baseTokens;
    this.#starts = new Uint32Array(baseTokens);
    this.#lengths = new Uint32Array(baseTokens);
    let slots = 1024;
    while (slots < baseTokens * 2) slots *= 2;
    this.#slots = new Int32Array(slots).fill(ABSENT);
    this.#mask = slots - 1;
  }

  /** How many tokens were added; ranks may have gaps when this is below `baseTokens`. */
  get count(): number {
    return this.#count;
  }

  /** Adds one token. Returns why it is refused (bad or repeated rank, empty or repeated bytes), or null when added. */
  add(bytes: Uint8Array, rank: number): string | null {
    if (!Number.isInteger(rank) || rank < 0 || rank >= this.baseTokens) {
      return `rank ${rank} is not an integer from 0 to ${this.baseTokens - 1}`;
    }
    if (bytes.length === 0) return `the token of rank ${rank} is empty`;
    if (this.#lengths[rank] !== 0) return `rank ${rank} is given twice`;
    const earlier = this.lookup(bytes, 0, bytes.length);
    if (earlier !== ABSENT) return `ranks ${earlier} and ${rank} have the same bytes`;
    if (this.#used + bytes.length > this.#bytes.length) {
      const grown = new Uint8Array(Math.max(this.#bytes.length * 2, this.#used + bytes.length));
      grown.set(this.#bytes.subarray(0, this.#used));
      this.#bytes = grown;
    }
    this.#bytes.set(bytes, this.#used);
    this.#starts[rank] = this.#used;
    this.#lengths[rank] = bytes.length;
    this.#used += bytes.length;
    this.#count += 1;
    this.longest = Math.max(this.longest, bytes.length);
    if (bytes.length === 1) this.#single[bytes[0]!] = rank;
    else if (bytes.length === 2) this.#double[(bytes[0]! << 8) | bytes[1]!] = rank;
    else {
      let slot = hash(bytes, 0, bytes.length) & this.#mask;
      while (this.#slots[slot] !== ABSENT) slot = (slot + 1) & this.#mask;
      this.#slots[slot] = rank;
    }
    return null;
  }

  /** The rank of the token that is exactly `bytes[start, end)`, or -1. */
  lookup(bytes: Uint8Array, start: number, end: number): number {
    const length = end - start;
    if (length === 1) return this.#single[bytes[start]!]!;
    if (length === 2) return this.#double[(bytes[start]! << 8) | bytes[start + 1]!]!;
    if (length > this.longest) return ABSENT;
    let slot = hash(bytes, start, end) & this.#mask;
    for (;;) {
      const rank = this.#slots[slot]!;
      if (rank === ABSENT) return ABSENT;
      if (this.#lengths[rank] === length && this.#equals(this.#starts[rank]!, bytes, start, length))
        return rank;
      slot = (slot + 1) & this.#mask;
    }
  }

  /** The bytes of a token (a view, not to be written to), or null when no token has this rank. */
  bytesOf(rank: number): Uint8Array | null {
    const length = this.#lengths[rank] ?? 0;
    if (length === 0) return null;
    const start = this.#starts[rank]!;
    return this.#bytes.subarray(start, start + length);
  }

  #equals(at: number, bytes: Uint8Array, start: number, length: number): boolean {
    const own = this.#bytes;
    for (let i = 0; i < length; i++) if (own[at + i] !== bytes[start + i]) return false;
    return true;
  }
}

/** FNV-1a with a final mix, so that the low bits depend on every byte. */
function hash(bytes: Uint8Array, start: number, end: number): number {
  let h = 0x811c9dc5;
  for (let i = start; i < end; i++) h = Math.imul(h ^ bytes[i]!, 0x01000193);
  h ^= h >>> 15;
  h = Math.imul(h, 0x2c1b3c6d);
  return h ^ (h >>> 13);
}
