/**
 * A seeded stream of numbers with the same bits on every machine: sfc32 (Chris Doty-Humphrey's small fast chaotic
 * generator, 32-bit state words), only integer operations. Not for secrets.
 */
export class Random {
  #a: number;
  #b: number;
  #c: number;
  #counter: number;

  /** Streams of different labels are independent, so that adding a user never shifts another one's numbers. */
  constructor(seed: number, label = "") {
    // FNV-1a folds the label into the seed; the first outputs are dropped because seeds that are close start close.
    let hash = 0x811c9dc5;
    for (const byte of Buffer.from(label, "utf8")) hash = Math.imul(hash ^ byte, 0x01000193);
    this.#a = seed | 0;
    this.#b = hash | 0;
    this.#c = Math.floor(seed / 2 ** 32) | 0;
    this.#counter = 1;
    for (let i = 0; i < 16; i++) this.uint32();
  }

  uint32(): number {
    const sum = (this.#a + this.#b + this.#counter) | 0;
    this.#counter = (this.#counter + 1) | 0;
    this.#a = this.#b ^ (this.#b >>> 9);
    this.#b = (this.#c + (this.#c << 3)) | 0;
    this.#c = ((this.#c << 21) | (this.#c >>> 11)) + sum;
    this.#c |= 0;
    return sum >>> 0;
  }

  /** Uniform in [0, 1), a multiple of 2^-32. */
  uniform(): number {
    return this.uint32() * 2 ** -32;
  }

  /** Uniform integer in [0, bound), bound up to 2^32; the bias of the multiplication is below 2^-20 for small bounds. */
  below(bound: number): number {
    return Math.floor(this.uniform() * bound);
  }

  /**
   * About normal, mean 0 and variance 1: the sum of twelve uniforms less six. Only additions, so that no machine's
   * libm takes part; the tails end at 6, which weights do not mind.
   */
  normal(): number {
    let sum = -6;
    for (let i = 0; i < 12; i++) sum += this.uniform();
    return sum;
  }

  /** Fills the bytes with the stream's words in little-endian order. */
  fill(bytes: Buffer): Buffer {
    let at = 0;
    for (; at + 4 <= bytes.length; at += 4) bytes.writeUInt32LE(this.uint32(), at);
    for (; at < bytes.length; at++) bytes[at] = this.uint32() & 255;
    return bytes;
  }
}
