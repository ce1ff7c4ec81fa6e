import { setMaxListeners } from "node:events";
import { createRequire } from "node:module";
import { HttpClient, Hub, RateGate } from "@k3/hub";
import { StageError, toStageError } from "@k3/stage";
import { BufferPool, DiskQueue, RiskBudget } from "./disk.ts";
import { Hasher } from "./hasher.ts";
import type { Settings } from "./options.ts";
import type { Report } from "./report.ts";
import { Throttle } from "./throttle.ts";

const { version } = createRequire(import.meta.url)("../package.json") as { version: string };

/** Connections times one of these is all the memory that bodies take: each connection has two halves to alternate. */
const BUFFER_BYTES = 2 * 1024 * 1024;

/** One body being received, as the watchdog and the display see it. */
export interface ActiveTransfer {
  bytes: number;
  /** What we wait for before we read on: the disk, or the rate limit of the user. */
  waiting: "disk" | "limit" | undefined;
  abort: (reason: Error) => void;
  markBytes: number;
  markAt: number;
}

/** What all parts of one run share. Everything in it is bounded by the concurrency, not by the size of the job. */
export class Run {
  readonly settings: Settings;
  readonly report: Report;
  readonly client: HttpClient;
  readonly gate: RateGate;
  readonly hub: Hub;
  readonly throttle: Throttle;
  readonly disk = new DiskQueue();
  readonly pool: BufferPool;
  readonly risk: RiskBudget;
  readonly hasher = new Hasher();
  readonly transfers = new Set<ActiveTransfer>();
  /** Milliseconds that connections have waited for the disk, all together. */
  diskWaitMs = 0;
  /** When a byte came last that was not there yet, or when bytes began to be wanted. */
  lastByteAt = performance.now();
  readonly #controller = new AbortController();
  /** Ends listening to the caller's signal, which may live much longer than this run and would keep it, buffers and all. */
  readonly #letGo: () => void;

  constructor(
    settings: Settings,
    report: Report,
    token: string | undefined,
    outside: AbortSignal | undefined,
  ) {
    const { timing, concurrency, segmentBytes } = settings;
    setMaxListeners(0, this.signal); // one for each connection and open file
    this.settings = settings;
    this.report = report;
    this.gate = new RateGate(timing, (bucket, ms) => {
      report.log("info", `rate limit of "${bucket}" reached: waiting ${Math.ceil(ms / 1000)} s`);
    });
    this.client = new HttpClient(
      {
        client: `k3-fetch/${version}`,
        endpoint: settings.endpoint,
        connections: concurrency,
        cdnHosts: settings.cdnHosts,
        timing,
        lookup: settings.lookup,
      },
      token,
      this.gate,
    );
    this.hub = new Hub(this.client, timing, report, this.signal);
    this.throttle = new Throttle(settings.limitRate);
    this.pool = new BufferPool(2 * concurrency, Math.min(BUFFER_BYTES, segmentBytes));
    this.risk = new RiskBudget(concurrency * segmentBytes);
    const stop = () => this.fail(interruption(outside!.reason));
    if (outside?.aborted) stop();
    else outside?.addEventListener("abort", stop, { once: true });
    this.#letGo = () => outside?.removeEventListener("abort", stop);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Stops everything; the first reason is the one that the run ends with. */
  fail(error: unknown): void {
    if (this.signal.aborted) return;
    this.#controller.abort(error);
    this.pool.cancel(error);
    this.risk.cancel(error);
  }

  /** The error to end with: what stopped the run, or else what was thrown; of two of the same kind the later, which knows more. */
  reason(thrown: unknown): StageError {
    if (!this.signal.aborted) return toStageError(thrown);
    const reason = toStageError(this.signal.reason);
    return thrown instanceof StageError && thrown.code === reason.code ? thrown : reason;
  }

  async close(): Promise<void> {
    this.#letGo();
    await Promise.all([this.client.close(), this.hasher.close()]);
  }
}

/** Whatever the caller's signal gives as its reason (a timeout, a text): to us it is an interruption. */
function interruption(reason: unknown): StageError {
  if (reason instanceof StageError) return reason;
  return new StageError("E_INTERRUPTED", "interrupted", {
    hint: "run the same command again to continue",
    cause: reason,
  });
}
