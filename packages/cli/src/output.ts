import {
  EXIT,
  formatBytes,
  formatSeconds,
  type LogEvent,
  type OnEvent,
  type ProgressEvent,
  type StageError,
} from "@k3/stage";
import { StatusLine } from "./status-line.ts";

/** Where a command writes: standard output for results, standard error for everything that passes by. */
export interface Streams {
  stdout: NodeJS.WritableStream & { isTTY?: boolean };
  stderr: NodeJS.WritableStream & { isTTY?: boolean; columns?: number };
}

/** How a command speaks: as lines of JSON for programs, or calmly to a person. */
export interface Output {
  readonly json: boolean;
  /** Events of the stages; hand it to every stage as `onEvent`. */
  readonly onEvent: OnEvent;
  /** A piece of the answer itself (generated text), as it comes. Nothing in JSON. */
  text(piece: string): void;
  /** A line of JSON beside events and result (chat: each turn). Nothing for people. */
  record(value: LogEvent & Record<string, unknown>): void;
  /** The final result: its JSON, or the lines that a person reads instead. */
  result(command: string, result: object, lines: readonly string[]): void;
  /** A remark for people on standard error. */
  note(line: string): void;
  error(error: StageError, debug: boolean): void;
  close(): void;
}

/** One JSON object a line on standard output, and nothing else there. */
export function jsonOutput({ stdout, stderr }: Streams, quiet: boolean): Output {
  const write = (value: object) => stdout.write(`${JSON.stringify(value)}\n`);
  return {
    json: true,
    onEvent: (event) => {
      if (!quiet || (event.type === "log" && event.level !== "info")) write(event);
    },
    text: () => undefined,
    record: write,
    result: (command, result) => write({ type: "result", command, ...result }),
    note: () => undefined,
    error: (error, debug) => {
      write({
        type: "error",
        code: error.code,
        exit: error.exit,
        message: error.message,
        hint: error.hint ?? null,
        ...(error.details ? { details: error.details } : {}),
      });
      if (debug) stderr.write(`${trace(error)}\n`);
    },
    close: () => undefined,
  };
}

/** Seconds between progress lines where the screen is no terminal (a log file, a service). */
const QUIET_LINE_SECONDS = 30;
/** And least seconds before a new phase gets its line, so that quick phases pass unseen. */
const NEW_PHASE_SECONDS = 1;

/** Results on standard output; on standard error a single line that is redrawn, or a line every half minute. */
export function humanOutput({ stdout, stderr }: Streams, quiet: boolean): Output {
  const live = stderr.isTTY === true && !quiet;
  const status = new StatusLine(stderr);
  let lastLine = Number.NEGATIVE_INFINITY;
  let lastPhase = "";

  /** Makes the terminal ready for a line of ours, also when text of an answer stands there unfinished. */
  const ownLine = () => {
    status.clear();
    if (status.midline) stderr.write("\n");
    status.midline = false;
  };
  const progress = (event: ProgressEvent) => {
    const line = progressLine(event);
    if (live) {
      status.show(line);
      return;
    }
    const phase = `${event.stage} ${phaseKind(event.phase)}`;
    const now = performance.now();
    if (now - lastLine < (phase === lastPhase ? QUIET_LINE_SECONDS : NEW_PHASE_SECONDS) * 1000) return;
    lastPhase = phase;
    lastLine = now;
    stderr.write(`${line}\n`);
  };
  return {
    json: false,
    onEvent: (event) => {
      if (event.type === "progress") {
        if (!quiet) progress(event);
      } else if (!quiet || event.level !== "info") {
        ownLine();
        stderr.write(`${event.stage}: ${event.level === "info" ? "" : `${event.level}: `}${event.message}\n`);
      }
    },
    text: (piece) => {
      status.clear();
      stdout.write(piece);
      // Text that goes into a file leaves the cursor of the terminal where it was.
      if (piece !== "") status.midline = stdout.isTTY === true && !piece.endsWith("\n");
    },
    record: () => undefined,
    result: (_command, _result, lines) => {
      status.clear();
      status.midline = false;
      for (const line of lines) stdout.write(`${line}\n`);
    },
    note: (line) => {
      if (quiet) return;
      ownLine();
      stderr.write(`${line}\n`);
    },
    error: (error, debug) => {
      ownLine();
      stderr.write(`k3: ${error.message}\n`);
      if (error.hint) stderr.write(`    ${error.hint}\n`);
      if (debug) stderr.write(`${trace(error)}\n`);
      else if (error.exit === EXIT.defect) {
        stderr.write(
          "    This is a defect of k3. Run the command again with --debug and report what it prints.\n",
        );
      }
    },
    close: () => status.clear(),
  };
}

/** "layer 12 of 93" and "layer 13 of 93" are one kind of phase: digits do not make a new line in a log. */
function phaseKind(phase: string): string {
  return phase.replace(/\d+/g, "#");
}

/** `fetch  downloading  412 GB of 1.56 TB  26 %  118 MB/s  2 h 41 min left`. */
export function progressLine(event: ProgressEvent): string {
  const amount = (n: number) => (event.unit === "bytes" ? formatBytes(n) : `${Math.round(n)}`);
  const parts = [`${event.stage.padEnd(6)} ${event.phase}`];
  if (event.total !== null && event.total > 0) {
    const unit = event.unit === "bytes" ? "" : ` ${event.unit}`;
    parts.push(`${amount(event.done)} of ${amount(event.total)}${unit}`);
    parts.push(`${Math.floor((100 * event.done) / event.total)} %`);
  } else if (event.done > 0) {
    parts.push(`${amount(event.done)}${event.unit === "bytes" ? "" : ` ${event.unit}`}`);
  }
  if (event.rate)
    parts.push(
      event.unit === "bytes" ? `${formatBytes(event.rate)}/s` : `${Number(event.rate.toPrecision(2))}/s`,
    );
  if (event.etaSeconds !== null && event.done < (event.total ?? 0))
    parts.push(`${formatSeconds(event.etaSeconds)} left`);
  for (const [name, value] of Object.entries(event.detail ?? {})) {
    if (value !== 0 && value !== false && value !== "") parts.push(detailText(name, value));
  }
  return parts.join("  ");
}

/** `read_bytes: 5165545` as `read 5.17 MB`, `bytes_per_second` as `117 MB/s`, `true` as the bare word. */
function detailText(name: string, value: string | number | boolean): string {
  const words = name
    .replace(/([a-z])([A-Z])/g, "$1_$2")
    .toLowerCase()
    .split("_")
    .join(" ");
  if (value === true) return words;
  if (typeof value === "string") return `${words} ${value}`;
  if (words === "bytes per second") return `${formatBytes(Number(value))}/s`;
  if (words.endsWith(" bytes")) return `${words.slice(0, -" bytes".length)} ${formatBytes(Number(value))}`;
  return `${words} ${Number(value).toLocaleString("en", { maximumFractionDigits: 1, useGrouping: false })}`;
}

function trace(error: StageError): string {
  const causes: string[] = [error.stack ?? error.message];
  for (let cause = error.cause; cause instanceof Error; cause = cause.cause)
    causes.push(`caused by ${cause.stack}`);
  return causes.join("\n");
}
