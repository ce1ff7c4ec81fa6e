/** A token bucket in bytes: at most `bytesPerSecond` on average, a burst of one second's worth. */
export class Throttle {
  readonly #rate: number;
  #tokens: number;
  #at = performance.now();

  constructor(bytesPerSecond: number | undefined) {
    this.#rate = bytesPerSecond ?? Number.POSITIVE_INFINITY;
    this.#tokens = this.#rate;
  }

  /** Takes tokens for bytes that have arrived; gives the milliseconds to wait before reading on (0: none). */
  take(bytes: number): number {
    if (this.#rate === Number.POSITIVE_INFINITY) return 0;
    const now = performance.now();
    this.#tokens = Math.min(this.#rate, this.#tokens + ((now - this.#at) / 1000) * this.#rate);
    this.#at = now;
    this.#tokens -= bytes;
    return this.#tokens >= 0 ? 0 : (-this.#tokens / this.#rate) * 1000;
  }
}
