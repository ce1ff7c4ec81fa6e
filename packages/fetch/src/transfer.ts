import {
  backoffMs,
  discard,
  headerText,
  hopelessNetworkError,
  networkReason,
  parseETag,
  pause,
  type Reply,
} from "@k3/hub";
import { formatSeconds, StageError } from "@k3/stage";

import { judge } from "./range-check.ts";
import type { ActiveTransfer, Run } from "./run.ts";
import type { Location } from "./signed-urls.ts";
import type { FileSource } from "./source.ts";
import type { SpanWriter } from "./span-writer.ts";

/** A failed attempt that may be repeated. */
class AttemptFailed extends Error {
  /** False: a wait that the server asked for, which is nobody's failure. */
  readonly counts: boolean;
  /** The host answered, but not with what was asked for. */
  readonly deviation: boolean;

  constructor(message: string, { counts = true, deviation = false } = {}) {
    super(message);
    this.counts = counts;
    this.deviation = deviation;
  }
}

/**
 * Receives one span of a file, however many requests that takes. Gives "done", "parked" when the file's host fails so
 * persistently that others should go first, or "restream" when it turns out that the host does not do ranges.
 * Throws the error that ends the run.
 */
export async function transfer(
  run: Run,
  source: FileSource,
  writer: SpanWriter,
): Promise<"done" | "parked" | "restream"> {
  const { timing } = run.settings;
  const enough = Math.min(timing.progressBytes, Math.ceil((writer.end - writer.position) / 4));
  let failures = 0;
  let mark = writer.received;
  for (;;) {
    let failure: AttemptFailed;
    let host = "the Hub";
    let location: Location | undefined;
    try {
      location = await source.location.get();
      host = location.url.host;
      await attempt(run, source, writer, location);
      return "done";
    } catch (error) {
      writer.flush();
      if (run.signal.aborted || error instanceof StageError) throw error;
      // Whatever went wrong after the last byte: there is nothing left to ask for.
      if (writer.position >= writer.end) return "done";
      const hopeless = hopelessNetworkError(error, host);
      if (hopeless) throw hopeless;
      failure = error instanceof AttemptFailed ? error : new AttemptFailed(networkReason(error));
      // A host that cannot be reached may be the wrong one by now: the Hub knows.
      if (location && failures > 0 && !(error instanceof AttemptFailed)) source.location.discard(location);
    }
    if (writer.received - mark >= enough) {
      mark = writer.received;
      failures = 0;
      source.deviations = 0;
    }
    const problem = `${host}: ${failure.message}`;
    run.report.retried(`${source.file.path}: ${problem}`);
    requireHope(run, source, problem, failure);
    if (source.mode === "restream") {
      await writer.leave();
      return "restream";
    }
    if (source.mode === "stream") await writer.restart();
    if (!failure.counts) continue;
    if (++failures >= timing.attempts) {
      await writer.leave();
      return "parked";
    }
    await pause(backoffMs(failures - 1, timing.backoffBase, timing.backoffCap), run.signal);
  }
}

/** Ends the run when no byte came for too long, or when a host persists in answering something else. */
function requireHope(run: Run, source: FileSource, problem: string, failure: AttemptFailed): void {
  const { timing } = run.settings;
  // All connections count together: a host that is out of order for seconds must not end a job of days.
  if (failure.deviation && ++source.deviations > timing.attempts * run.settings.concurrency) {
    throw new StageError(
      "E_HUB",
      `${source.file.path} is not served as the listing says; last answer of ${problem}`,
      {
        hint: "the mirror or a proxy on the way is broken; try another --endpoint",
      },
    );
  }
  if (performance.now() - run.lastByteAt > timing.giveUp) {
    const seconds = Math.round(timing.giveUp / 1000);
    throw new StageError(
      "E_NETWORK",
      `no data came for ${seconds} s; last problem: ${source.file.path}: ${problem}`,
      {
        hint: "check the connection, and whether a firewall blocks that host, and run the same command again: it resumes",
      },
    );
  }
}

async function attempt(run: Run, source: FileSource, writer: SpanWriter, location: Location): Promise<void> {
  const { size } = source.file;
  const first = writer.position;
  const last = writer.end - 1;
  const abort = new AbortController();
  const stop = () => abort.abort(run.signal.reason);
  run.signal.addEventListener("abort", stop, { once: true });
  let reply: Reply | undefined;
  try {
    reply = await run.client.send(location.url, {
      method: "GET",
      headers: first === 0 && last === size - 1 ? {} : { range: `bytes=${first}-${last}` },
      signal: abort.signal,
      foreign: "follow",
    });
    accept(run, source, location, reply, judge(reply, first, last, size));
    await receive(run, source, writer, reply, (reason) => abort.abort(reason));
  } catch (error) {
    // The reason of our own abort (a stall) says more than the error it caused.
    throw abort.signal.aborted && !run.signal.aborted ? abort.signal.reason : error;
  } finally {
    run.signal.removeEventListener("abort", stop);
    if (reply) discard(reply);
  }
}

async function receive(
  run: Run,
  source: FileSource,
  writer: SpanWriter,
  reply: Reply,
  abort: (reason: Error) => void,
): Promise<void> {
  const active: ActiveTransfer = {
    bytes: 0,
    waiting: undefined,
    abort,
    markBytes: 0,
    markAt: performance.now(),
  };
  const before = writer.received;
  run.transfers.add(active);
  try {
    for await (const chunk of reply.body as AsyncIterable<Buffer>) {
      if (writer.position + chunk.length > writer.end) {
        throw new AttemptFailed("the body is longer than announced", { deviation: true });
      }
      active.bytes += chunk.length;
      run.report.downloaded += chunk.length;
      await writer.push(chunk, active);
      const wait = run.throttle.take(chunk.length);
      if (wait === 0) continue;
      active.waiting = "limit";
      await pause(wait, run.signal);
      active.waiting = undefined;
    }
  } finally {
    run.transfers.delete(active);
    // A body that breaks off is progress, too.
    if (writer.received > before) source.location.progressed();
  }
  if (writer.position < writer.end) {
    throw new AttemptFailed(`the body ended ${writer.end - writer.position} bytes early`);
  }
}

/** Throws unless the body may be read. */
function accept(
  run: Run,
  source: FileSource,
  location: Location,
  reply: Reply,
  verdict: ReturnType<typeof judge>,
): void {
  switch (verdict.kind) {
    case "accept":
      requireSameETag(source, location, reply);
      return;
    case "whole":
      source.wholeFileSent();
      throw new AttemptFailed("it sends the whole file although a range was asked for");
    case "reject":
      source.location.discard(location);
      throw new AttemptFailed(verdict.why, { deviation: true });
    case "refused":
      if (run.client.isEndpoint(reply.url) && run.client.isEndpoint(location.url)) {
        throw new StageError("E_HUB", `the Hub refuses ${source.file.path} (${reply.status})`, {
          hint: "check that your token (HF_TOKEN) still has access to the repository",
        });
      }
      throw refusal(reply.status, source.location.refused(location, reply.status));
    case "transient":
      throw new AttemptFailed(verdict.why, { counts: !(reply.status === 429 && reply.waitNamed) });
    case "contradiction":
      throw new StageError("E_HUB", `${source.file.path}: ${verdict.why}`, {
        hint: "the endpoint, or a cache on the way, has another version of the file",
      });
  }
}

const refusal = (status: number, wait: number) =>
  new AttemptFailed(`status ${status}: asking for a fresh URL in ${formatSeconds(wait / 1000)}`);

/**
 * The storage's ETag is unrelated to the hash, but it must not change between ranges of one file. One that is new is
 * accepted after the Hub, asked again, has confirmed the file's hash; what decides in the end is the hash of the bytes.
 */
function requireSameETag(source: FileSource, location: Location, reply: Reply): void {
  const etag = parseETag(headerText(reply.headers, "etag"));
  if (etag === undefined) return;
  const known = source.etags.get(reply.url.host) ?? { accepted: new Set([etag]), proposed: undefined };
  source.etags.set(reply.url.host, known);
  if (known.accepted.has(etag)) return;
  if (known.proposed?.etag === etag && known.proposed.location !== location) {
    known.accepted.add(etag);
    return;
  }
  if (known.proposed?.etag !== etag) known.proposed = { etag, location };
  source.location.discard(location);
  throw new AttemptFailed("the ETag of the file has changed", { deviation: true });
}
