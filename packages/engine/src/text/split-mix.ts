import { StageError } from "@k3/stage";

const MASK = (1n << 64n) - 1n;

/**
 * SplitMix64 (Steele, Lea and Flood 2014): the state grows by 0x9e3779b97f4a7c15 modulo 2^64, and each value is the state mixed
 * by two xor-shift-multiplies. Its whole state is 64 bits. First values for the seed 1234567:
 * 6457827717110365317, 3203168211198807973, 9817491932198370423.
 */
export class SplitMix64 {
  #state: bigint;

  /** `seed` is an integer from 0 to 2^64 - 1. */
  constructor(seed: bigint) {
    this.#state = seed & MASK;
  }

  /** The next 64 bits. */
  next(): bigint {
    this.#state = (this.#state + 0x9e3779b97f4a7c15n) & MASK;
    let z = this.#state;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK;
    return z ^ (z >> 31n);
  }

  /** A number in [0, 1): the upper 53 bits of the next value over 2^53. */
  uniform(): number {
    return Number(this.next() >> 11n) / 2 ** 53;
  }

  /** The state as 16 hexadecimal digits. */
  save(): string {
    return this.#state.toString(16).padStart(16, "0");
  }

  /** Goes on from a saved state. Throws E_USAGE when it is none. */
  restore(saved: string): void {
    if (!/^[0-9a-f]{16}$/.test(saved)) {
      throw new StageError(
        "E_USAGE",
        `${JSON.stringify(saved)} is not the state of a generator (16 hexadecimal digits)`,
      );
    }
    this.#state = BigInt(`0x${saved}`);
  }
}
