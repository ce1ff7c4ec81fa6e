/** One thing that a stage reports while it works. Every stage emits these through `StageOptions.onEvent`. */
export type StageEvent = ProgressEvent | LogEvent;

/** How far the current phase has come. Emitted at least once a second while anything is waited for. */
export interface ProgressEvent {
  type: "progress";
  /** Which stage: "fetch", "verify", "pack", "run", ... */
  stage: string;
  /** What is being done now, in words a person can read: "hashing", "layer 12 of 93". */
  phase: string;
  /** How much is done and how much there is, in `unit`; total is null while it is not known. */
  done: number;
  total: number | null;
  unit: "bytes" | "files" | "blocks" | "layers" | "tokens" | "steps" | "tensors";
  /** Units per second over the last seconds, and seconds yet to go, once they can be told. */
  rate: number | null;
  etaSeconds: number | null;
  /** Facts that only this stage has: connections, retries, waits, the file at work. */
  detail?: Record<string, string | number | boolean>;
}

export interface LogEvent {
  type: "log";
  level: "info" | "warn" | "error";
  stage: string;
  message: string;
}

export type OnEvent = (event: StageEvent) => void;

/** What every stage function accepts beside its own options. */
export interface StageOptions {
  /** Stops the stage at the next safe point; it then throws E_INTERRUPTED and can be resumed by the same call. */
  signal?: AbortSignal | undefined;
  onEvent?: OnEvent | undefined;
}

/**
 * Turns counts into progress events: at most `perSecond` of them, with a rate over the last ten seconds and an
 * estimate of what remains. Bytes that were already there (resumed) are given as `initial` and do not enter the rate.
 */
export class Meter {
  readonly #stage: string;
  readonly #unit: ProgressEvent["unit"];
  readonly #onEvent: OnEvent | undefined;
  readonly #intervalMs: number;
  readonly #samples: { at: number; done: number }[] = [];
  #lastEmitted = Number.NEGATIVE_INFINITY;
  #done: number;
  total: number | null;
  phase: string;
  detail: NonNullable<ProgressEvent["detail"]> = {};

  constructor(options: {
    stage: string;
    phase: string;
    unit: ProgressEvent["unit"];
    total: number | null;
    initial?: number;
    onEvent?: OnEvent | undefined;
    perSecond?: number;
  }) {
    this.#stage = options.stage;
    this.#unit = options.unit;
    this.#onEvent = options.onEvent;
    this.#intervalMs = 1000 / (options.perSecond ?? 4);
    this.#done = options.initial ?? 0;
    this.phase = options.phase;
    this.total = options.total;
    this.#samples.push({ at: performance.now(), done: this.#done });
  }

  get done(): number {
    return this.#done;
  }

  /** Adds to the count; 0 shows that time passes. */
  add(amount: number): void {
    this.set(this.#done + amount);
  }

  /** Corrects the count without touching the rate: by what turned out to be there already, or (negative) to be done again. */
  correct(amount: number): void {
    for (const sample of this.#samples) sample.done += amount;
    this.add(amount);
  }

  set(done: number): void {
    this.#done = done;
    if (performance.now() - this.#lastEmitted >= this.#intervalMs) this.emit();
  }

  /** Emits now, whatever the interval: for the first and last event of a phase. */
  emit(): void {
    const now = performance.now();
    this.#lastEmitted = now;
    this.#samples.push({ at: now, done: this.#done });
    while (this.#samples.length > 2 && now - this.#samples[0]!.at > 10_000) this.#samples.shift();
    const first = this.#samples[0]!;
    const seconds = (now - first.at) / 1000;
    const rate = seconds > 0.2 ? Math.max(0, (this.#done - first.done) / seconds) : null;
    const left = this.total === null ? null : Math.max(0, this.total - this.#done);
    this.#onEvent?.({
      type: "progress",
      stage: this.#stage,
      phase: this.phase,
      done: this.#done,
      total: this.total,
      unit: this.#unit,
      rate,
      etaSeconds: rate && left !== null ? left / rate : null,
      ...(Object.keys(this.detail).length > 0 ? { detail: { ...this.detail } } : {}),
    });
  }
}
