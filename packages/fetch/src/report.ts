import { redact } from "@k3/hub";
import { Meter, type OnEvent } from "@k3/stage";

/** What the run tells the outside: progress of bytes with the facts behind it, and log lines without secrets. */
export class Report {
  readonly #onEvent: OnEvent | undefined;
  readonly #token: string | undefined;
  readonly #perSecond: number;
  readonly #said = new Set<string>();
  meter: Meter;
  /** Facts for `detail`, read at every tick. */
  facts: () => Record<string, string | number | boolean> = () => ({});
  downloaded = 0;
  resumed = 0;
  retries = 0;
  lastProblem = "";

  constructor(onEvent: OnEvent | undefined, token: string | undefined, perSecond: number) {
    this.#onEvent = onEvent;
    this.#token = token;
    this.#perSecond = perSecond;
    this.meter = this.#meter("listing", null, 0);
  }

  /** Starts a phase with its own count; `initial` bytes are done already and do not enter the rate. */
  begin(phase: string, total: number | null, initial = 0): void {
    this.meter = this.#meter(phase, total, initial);
    this.tick();
  }

  #meter(phase: string, total: number | null, initial: number): Meter {
    const unit = "bytes" as const;
    return new Meter({
      stage: "fetch",
      phase,
      unit,
      total,
      initial,
      onEvent: this.#onEvent,
      perSecond: this.#perSecond,
    });
  }

  log(level: "info" | "warn" | "error", message: string): void {
    this.#onEvent?.({ type: "log", level, stage: "fetch", message: redact(message, this.#token) });
  }

  logOnce(level: "info" | "warn" | "error", message: string): void {
    if (this.#said.has(message)) return;
    this.#said.add(message);
    this.log(level, message);
  }

  retried(problem: string): void {
    this.retries++;
    this.lastProblem = redact(problem, this.#token);
  }

  /** Shows that time passes, with fresh facts. */
  tick(): void {
    this.#refresh();
    this.meter.add(0);
  }

  /** The last event of the run, whenever the one before was. */
  end(): void {
    this.#refresh();
    this.meter.emit();
  }

  #refresh(): void {
    this.meter.detail = {
      ...this.facts(),
      retries: this.retries,
      ...(this.lastProblem ? { last_problem: this.lastProblem } : {}),
    };
  }
}
