/** Samples that a run keeps at most: a chart of a phone's width shows no more. */
const MOST = 512;

/**
 * Resident memory over time, sampled from now on: `[seconds, bytes]`. Of a run of hours it keeps no more than of one of
 * a minute: when there are too many, every second one goes, and from then on half as many are taken.
 */
export class MemorySamples {
  readonly #started = performance.now();
  readonly #samples: [number, number][] = [];
  #timer: NodeJS.Timeout | undefined;
  #everyMs: number;

  constructor(everyMs = 200) {
    this.#everyMs = everyMs;
    this.take();
    this.#restart();
  }

  take(): void {
    this.#samples.push([(performance.now() - this.#started) / 1000, process.memoryUsage.rss()]);
    if (this.#samples.length <= MOST) return;
    const kept = this.#samples.filter((_, index) => index % 2 === 0);
    this.#samples.splice(0, Number.POSITIVE_INFINITY, ...kept);
    this.#everyMs *= 2;
    this.#restart();
  }

  /** The last sample is taken now. */
  end(): [number, number][] {
    clearInterval(this.#timer);
    this.take();
    clearInterval(this.#timer);
    return this.#samples;
  }

  #restart(): void {
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.take(), this.#everyMs).unref();
  }
}
