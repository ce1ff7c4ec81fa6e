import type { SnapshotFile } from "@k3/stage";
import { expectedHash } from "@k3/stage";
import { Frontier } from "./frontier.ts";
import { SEGMENT } from "./part-journal.ts";
import { partsDirectory } from "./paths.ts";
import type { PublishContext } from "./publish.ts";
import { publish, quarantine } from "./publish.ts";
import type { Run } from "./run.ts";
import { PartFile } from "./segments.ts";
import { FileSource } from "./source.ts";
import { SpanWriter } from "./span-writer.ts";
import { transfer } from "./transfer.ts";

/** One file on its way: its part file, where its bytes come from, and its hash so far. */
export class FileJob {
  readonly file: SnapshotFile;
  readonly source: FileSource;
  /** Put to the end because its host keeps failing. */
  parked = false;
  readonly #run: Run;
  readonly #context: PublishContext;
  readonly #onChange: () => void;
  #part: PartFile | undefined;
  #frontier: Frontier | undefined;
  /** The one connection that takes the whole file, where the host does not do ranges. */
  #stream: SpanWriter | undefined;
  #refetched = false;

  constructor(run: Run, context: PublishContext, file: SnapshotFile, onChange: () => void) {
    this.#run = run;
    this.#context = context;
    this.#onChange = onChange;
    this.file = file;
    this.source = new FileSource(run, context.revision, file);
  }

  /** Opens or resumes the part file; what it has already is hashed from now on. */
  async open(): Promise<void> {
    const { segmentBytes, dir } = this.#run.settings;
    this.#part = await PartFile.open(partsDirectory(dir), this.file, {
      segmentBytes,
      disk: this.#run.disk,
      onDurable: (bytes) => this.#run.risk.release(bytes),
      onError: (error) => this.#run.fail(error),
    });
    const { resumedBytes, discarded } = this.#part;
    if (discarded) {
      const what = `${this.file.path}: what an earlier run left of it cannot be continued (${discarded})`;
      this.#run.report.log("warn", `${what}; starting over`);
    }
    this.#run.report.resumed += resumedBytes;
    this.#run.report.meter.correct(resumedBytes);
    this.#run.lastByteAt = performance.now();
    this.#startFrontier();
  }

  /** A span for a connection to receive, or undefined when there is none to give. */
  take(): SpanWriter | undefined {
    const part = this.#part!;
    const onSegment = () => {
      this.#frontier!.advance();
      this.#streamIfIdle();
      this.#onChange();
    };
    if (this.source.mode === "stream") {
      if (this.#stream || !part.state.includes(SEGMENT.missing)) return undefined;
      this.#stream = new SpanWriter(this.#run, part, { start: 0, end: this.file.size }, onSegment);
      return this.#stream;
    }
    if (this.source.mode === "restream") return undefined;
    const segment = part.state.indexOf(SEGMENT.missing);
    if (segment < 0) return undefined;
    part.state[segment] = SEGMENT.taken;
    const start = part.start(segment);
    return new SpanWriter(this.#run, part, { start, end: start + part.length(segment) }, onSegment);
  }

  /** Receives a span taken, from where it was left on. */
  async receive(writer: SpanWriter): Promise<void> {
    await this.#checkPrefixes(writer);
    if (writer !== this.#stream) writer.goOn();
    const outcome = await transfer(this.#run, this.source, writer);
    // Until its last writes are done, another one that takes the whole file would take these segments again.
    if (writer === this.#stream) await writer.leave();
    this.#give(writer, outcome);
  }

  /** What was left of unfinished segments is read back before it is gone on from. */
  async #checkPrefixes(writer: SpanWriter): Promise<void> {
    const part = this.#part!;
    for (let at = writer.start; at < writer.end; at += part.segmentBytes) {
      const segment = Math.floor(at / part.segmentBytes);
      const lost = await part.checkPrefix(segment, this.#run.signal);
      if (lost === 0) continue;
      // What this run received itself was never counted as resumed.
      this.#run.report.resumed -= Math.min(lost, part.resumedPrefixes.get(segment) ?? 0);
      part.resumedPrefixes.delete(segment);
      this.#run.report.meter.correct(-lost);
      this.#damaged(lost, at);
    }
  }

  #damaged(bytes: number, from: number): void {
    const what = `${this.file.path}: ${bytes} bytes from ${from} on were damaged on the disk`;
    this.#run.report.log("warn", `${what}; fetching them again`);
  }

  /** Bytes hashed so far, once all of them are here; undefined before that. */
  get hashedBytes(): number | undefined {
    return this.#part!.state.some((state) => state < SEGMENT.written) ? undefined : this.#frontier!.position;
  }

  /** Makes durable what was received of unfinished segments, unless that has been done lately. */
  checkpoint(): void {
    this.#part!.checkpointAfter(this.#run.settings.timing.checkpoint);
  }

  /** A connection has ended with a span; whatever of it is not written is to be taken again. */
  #give(writer: SpanWriter, outcome: "done" | "parked" | "restream"): void {
    const part = this.#part!;
    if (writer === this.#stream) this.#stream = undefined;
    if (outcome !== "done") {
      const segment = Math.floor(writer.start / part.segmentBytes);
      if (part.state[segment] === SEGMENT.taken) part.state[segment] = SEGMENT.missing;
      if (outcome === "parked") {
        this.parked = true;
        this.#run.report.log("info", `${this.file.path}: its host keeps failing, so other files go first`);
      }
    }
    this.#streamIfIdle();
  }

  /** All connections on this file have to come back before one of them takes the whole. */
  #streamIfIdle(): void {
    if (this.source.mode === "restream" && !this.#part!.state.includes(SEGMENT.taken))
      this.source.mode = "stream";
  }

  /** Waits for the hash of the whole file and publishes it; or takes back what must be wrong and says "again". */
  async finish(signal: AbortSignal): Promise<"published" | "again" | "quarantined" | "stopped"> {
    const part = this.#part!;
    const result = await unlessAborted(this.#frontier!.finished, signal);
    if (result === undefined) return "stopped";
    if (result.hash === expectedHash(this.file).hash) {
      await publish(this.#context, part, result);
      return "published";
    }
    const suspects = part.adopted.size > 0 ? [...part.adopted] : [...part.state.keys()];
    if (part.adopted.size === 0) {
      if (this.#refetched) {
        await quarantine(part);
        return "quarantined";
      }
      this.#refetched = true;
    }
    this.#run.report.log(
      "warn",
      part.adopted.size > 0
        ? `${this.file.path}: what another program left of it is not what it should be; fetching those bytes again`
        : `${this.file.path}: the bytes received do not have the published hash; fetching it once more`,
    );
    const bytes = suspects.reduce((sum, segment) => sum + part.length(segment), 0);
    await part.invalidate(suspects);
    this.#run.report.meter.correct(-bytes);
    this.source.distrust();
    this.#run.lastByteAt = performance.now();
    this.#startFrontier();
    this.#onChange();
    return "again";
  }

  /** After an abort: keeps what is written, closes everything. */
  async suspend(): Promise<void> {
    await this.#frontier?.stop();
    await this.#part?.close();
  }

  #startFrontier(): void {
    const part = this.#part!;
    this.#frontier = new Frontier(part, this.#run.hasher, (segment) => {
      this.#run.report.meter.correct(-part.length(segment));
      this.#damaged(part.length(segment), part.start(segment));
      this.#onChange();
    });
    this.#frontier.advance();
  }
}

/** The value, or undefined when the signal is aborted first. */
function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T | undefined> {
  return new Promise((resolve, reject) => {
    const stop = () => resolve(undefined);
    if (signal.aborted) return stop();
    signal.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}
