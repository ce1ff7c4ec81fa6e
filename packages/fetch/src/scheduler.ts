import { pause } from "@k3/hub";
import type { SnapshotFile } from "@k3/stage";
import { StageError, throwIfAborted } from "@k3/stage";
import { FileJob } from "./file-job.ts";
import type { PublishContext } from "./publish.ts";
import type { Run } from "./run.ts";
import type { SpanWriter } from "./span-writer.ts";

/** Shards under construction at a time: one to fill, one to go on with while the first is finished. */
const OPEN_SHARDS = 2;
/** Connections are taken away while they wait for the disk more than this share of their time, and given back below the other. */
const DISK_BOUND = 0.25;
const DISK_FREE = 0.05;

/** Deals segments of files, in order, to connections. */
export class Scheduler {
  readonly #run: Run;
  readonly #context: PublishContext;
  readonly #queue: SnapshotFile[];
  readonly #open: FileJob[] = [];
  readonly #bad: string[] = [];
  readonly #finishing = new Set<Promise<void>>();
  #opening = 0;
  #busy = 0;
  #wake: (() => void)[] = [];
  /** Connections that may work now; the disk decides, between 2 and what was asked for. */
  #allowed: number;
  #window = { at: performance.now(), diskWaitMs: 0 };

  constructor(run: Run, context: PublishContext, files: readonly SnapshotFile[]) {
    this.#run = run;
    this.#context = context;
    this.#queue = [...files];
    this.#allowed = run.settings.concurrency;
  }

  /** What the display shows beside the bytes. */
  facts(): Record<string, string | number | boolean> {
    const { transfers, gate } = this.#run;
    return {
      connections: transfers.size,
      connections_allowed: this.#allowed,
      waiting_for_disk: [...transfers].filter((t) => t.waiting === "disk").length,
      waiting_for_rate_limit: gate.waiting,
      files_open: this.#open.length,
      files_left: this.#queue.length + this.#open.length,
      file: this.#open[0]?.file.path ?? "",
    };
  }

  /** What is being done, in words. When all that is open has been received, it is its hashes that are waited for. */
  phase(): string {
    let hashed = 0;
    let bytes = 0;
    for (const job of this.#open) {
      if (job.hashedBytes === undefined) return "downloading";
      hashed += job.hashedBytes;
      bytes += job.file.size;
    }
    return bytes === 0
      ? "downloading"
      : `checking what was received, ${Math.floor((100 * hashed) / bytes)} %`;
  }

  /** Downloads and publishes every file. Throws the first fatal error, after all that was written has been made safe. */
  async run(): Promise<void> {
    const { signal, settings } = this.#run;
    const wake = () => this.#changed();
    signal.addEventListener("abort", wake, { once: true });
    const workers = Array.from({ length: settings.concurrency }, (_, index) =>
      this.#worker(index).catch((error) => this.#run.fail(error)),
    );
    await Promise.all(workers);
    await Promise.all(this.#finishing);
    signal.removeEventListener("abort", wake);
    if (signal.aborted) {
      const closed = await Promise.allSettled(this.#open.map((job) => job.suspend()));
      const lost = closed.find((result) => result.status === "rejected");
      throw this.#run.reason(lost?.reason);
    }
    if (this.#bad.length > 0) {
      throw new StageError(
        "E_DATA",
        `${this.#bad.length} files do not have the published hash, downloaded twice: ${this.#bad.slice(0, 5).join(", ")}`,
        {
          hint: "the source is bad: try another --endpoint; what was received is kept as .cache/k3/parts/*.bad",
          details: { paths: this.#bad },
        },
      );
    }
  }

  /** Called at every tick: watches for stalls, adapts the number of connections, and has slow segments made durable. */
  tick(bytesLeft: number, bytesInAll: number): void {
    this.#watch(bytesLeft < bytesInAll / 20);
    this.#adapt();
    for (const job of this.#open) job.checkpoint();
  }

  async #worker(index: number): Promise<void> {
    for (;;) {
      throwIfAborted(this.#run.signal);
      if (index >= this.#allowed && this.#unfinished()) {
        await this.#change();
        continue;
      }
      const task = this.#take();
      if (task) {
        await this.#perform(task.job, task.writer);
        continue;
      }
      if (this.#mayOpen()) {
        await this.#openNext();
        continue;
      }
      if (!this.#unfinished()) return;
      if (this.#busy === 0 && this.#unpark()) {
        const { backoffBase, backoffCap } = this.#run.settings.timing;
        await pause(Math.random() * Math.min(backoffCap, 4 * backoffBase), this.#run.signal);
        continue;
      }
      await this.#change();
    }
  }

  async #perform(job: FileJob, writer: SpanWriter): Promise<void> {
    this.#busy++;
    try {
      await job.receive(writer);
    } finally {
      this.#busy--;
      this.#changed();
    }
  }

  #take(): { job: FileJob; writer: SpanWriter } | undefined {
    for (const job of this.#open) {
      const writer = job.parked ? undefined : job.take();
      if (writer) return { job, writer };
    }
    return undefined;
  }

  #mayOpen(): boolean {
    const next = this.#queue[0];
    if (!next) return false;
    const { smallBytes, concurrency } = this.#run.settings;
    // A parked file keeps its place in memory but not in the count: others go first.
    const active = this.#open.filter((job) => !job.parked);
    if (this.#open.length - active.length > 16) return false;
    if (active.length + this.#opening >= concurrency + OPEN_SHARDS) return false;
    if (next.size < smallBytes) return true;
    return active.filter((job) => job.file.size >= smallBytes).length + this.#opening < OPEN_SHARDS;
  }

  async #openNext(): Promise<void> {
    const job = new FileJob(this.#run, this.#context, this.#queue.shift()!, () => this.#changed());
    this.#opening++;
    try {
      await job.open();
      this.#open.push(job);
    } finally {
      this.#opening--;
      this.#changed();
    }
    const finishing = this.#finish(job)
      .catch((error) => this.#run.fail(error))
      .finally(() => {
        this.#finishing.delete(finishing);
        this.#changed();
      });
    this.#finishing.add(finishing);
  }

  async #finish(job: FileJob): Promise<void> {
    for (;;) {
      const outcome = await job.finish(this.#run.signal);
      if (outcome === "stopped") return;
      if (outcome === "again") continue;
      if (outcome === "quarantined") {
        this.#bad.push(job.file.path);
        this.#run.report.log(
          "error",
          `${job.file.path}: the bytes received twice do not have the published hash`,
        );
      }
      this.#open.splice(this.#open.indexOf(job), 1);
      return;
    }
  }

  #unfinished(): boolean {
    return this.#open.length > 0 || this.#queue.length > 0 || this.#opening > 0;
  }

  /** Nothing else is left to do: the files put to the end get another round. */
  #unpark(): boolean {
    const parked = this.#open.filter((job) => job.parked);
    if (parked.length === 0) return false;
    for (const job of parked) job.parked = false;
    this.#changed();
    return true;
  }

  #change(): Promise<void> {
    if (this.#run.signal.aborted) return Promise.resolve();
    return new Promise((resolve) => this.#wake.push(resolve));
  }

  #changed(): void {
    const waiting = this.#wake;
    this.#wake = [];
    for (const resolve of waiting) resolve();
  }

  /** Gives up bodies that bring next to nothing although we are reading: the connection hangs, and nothing else says so. */
  #watch(tail: boolean): void {
    const { stall, tailStall, stallBytes } = this.#run.settings.timing;
    const limit = tail ? tailStall : stall;
    const now = performance.now();
    for (const active of this.#run.transfers) {
      if (active.waiting || active.bytes - active.markBytes >= stallBytes) {
        active.markBytes = active.bytes;
        active.markAt = now;
      } else if (now - active.markAt > limit) {
        const bytes = active.bytes - active.markBytes;
        active.abort(new Error(`stalled: ${bytes} bytes in ${Math.round(limit / 100) / 10} s`));
      }
    }
  }

  #adapt(): void {
    const { timing, concurrency } = this.#run.settings;
    const now = performance.now();
    if (now - this.#window.at < timing.adapt) return;
    const waited = this.#run.diskWaitMs - this.#window.diskWaitMs;
    const share = waited / ((now - this.#window.at) * this.#allowed);
    if (share > DISK_BOUND)
      this.#allowed = Math.max(Math.min(2, concurrency), Math.floor(this.#allowed * 0.75));
    else if (share < DISK_FREE && this.#allowed < concurrency) {
      this.#allowed++;
      this.#changed();
    }
    this.#window = { at: now, diskWaitMs: this.#run.diskWaitMs };
  }
}
