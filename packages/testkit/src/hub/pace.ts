/**
 * A token bucket over bytes that many bodies share: together they pass `bytesPerSecond`, with at most 20 ms of it in
 * one burst, so that a link's speed shows in every short window too.
 */
export class Pace {
  #freeAt = 0;

  /** Resolves when `bytes` may be sent at this rate. */
  async pass(bytes: number, bytesPerSecond: number): Promise<void> {
    const now = performance.now();
    this.#freeAt = Math.max(this.#freeAt, now - 20) + (bytes / bytesPerSecond) * 1000;
    const wait = this.#freeAt - now;
    if (wait > 1) await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
