import { spawn } from "node:child_process";
import { runInNewContext } from "node:vm";
import { formatBytes, StageError, throwIfAborted } from "@k3/stage";

export interface OtherRun {
  ids: number[];
  /** Seconds per decoded token as that engine prints them. */
  seconds: number;
}

export interface OtherEngine {
  command: string;
  ids: RegExp;
  seconds: RegExp;
}

/** Another engine's command line and how to read its output. Throws E_USAGE for a pattern that does not compile. */
export function otherEngine(command: string, idsPattern: string, secondsPattern: string): OtherEngine {
  return {
    command,
    ids: compile(idsPattern, "ids-pattern"),
    seconds: compile(secondsPattern, "seconds-pattern"),
  };
}

/**
 * Runs another engine's command line through the shell and takes ids and seconds per token from what it prints.
 * `ids`: every match's first group is a list of ids (or one id); `seconds`: every match's first group is
 * a number above 0, and the median of all matches but the first (the cold one) is taken when there are several.
 * Throws E_USAGE for a pattern that finds nothing, E_DATA when the command fails.
 */
export async function runOther(
  { command, ids, seconds }: OtherEngine,
  signal: AbortSignal | undefined,
): Promise<OtherRun> {
  const text = await outputOf(command, signal);
  const found = matches(text, ids, "ids-pattern")
    .flatMap((match) => match.match(/\d+/g) ?? [])
    .map(Number);
  const times = matches(text, seconds, "seconds-pattern")
    .map(Number)
    .filter((time) => Number.isFinite(time) && time > 0);
  if (found.length === 0 || times.length === 0) {
    throw new StageError(
      "E_USAGE",
      `the output of ${JSON.stringify(command)} has ${found.length} ids and ${times.length} times`,
      {
        hint: "check --ids-pattern and --seconds-pattern against what the command prints",
      },
    );
  }
  const warm = times.length > 1 ? times.slice(1).sort((a, b) => a - b) : times;
  return { ids: found, seconds: warm[warm.length >> 1]! };
}

/** The first group of every match. Some patterns go back and forth for ever on some texts: those are given up. */
function matches(text: string, pattern: RegExp, option: string): string[] {
  const code = "Array.from(text.matchAll(pattern), (match) => match[1] ?? match[0])";
  try {
    return runInNewContext(code, { text, pattern }, { timeout: PATTERN_SECONDS * 1000 }) as string[];
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ERR_SCRIPT_EXECUTION_TIMEOUT") throw error;
    throw new StageError("E_USAGE", `--${option} was not done after ${PATTERN_SECONDS} s`, {
      hint: "write it without repetitions inside of repetitions",
    });
  }
}

const PATTERN_SECONDS = 5;
/** More than this is no engine's report of a few tokens. */
const MOST_OUTPUT = 64e6;

function compile(pattern: string, option: string): RegExp {
  try {
    return new RegExp(pattern, "gm");
  } catch (error) {
    throw new StageError("E_USAGE", `--${option}: ${(error as Error).message}`);
  }
}

async function outputOf(command: string, signal: AbortSignal | undefined): Promise<string> {
  throwIfAborted(signal);
  const child = spawn("sh", ["-c", command], { stdio: ["ignore", "pipe", "pipe"], detached: true });
  const stop = () => process.kill(-child.pid!, "SIGTERM");
  signal?.addEventListener("abort", stop, { once: true });
  const pieces: Buffer[] = [];
  let bytes = 0;
  const take = (piece: Buffer) => {
    if (bytes > MOST_OUTPUT) return;
    bytes += piece.length;
    pieces.push(piece);
    if (bytes > MOST_OUTPUT) stop();
  };
  child.stdout.on("data", take);
  child.stderr.on("data", take);
  const code = await new Promise<number | null>((done, failed) => {
    child.once("error", failed);
    child.once("close", done);
  });
  signal?.removeEventListener("abort", stop);
  throwIfAborted(signal);
  if (bytes > MOST_OUTPUT)
    throw new StageError(
      "E_DATA",
      `${JSON.stringify(command)} printed more than ${formatBytes(MOST_OUTPUT)}`,
      {
        hint: "let it print ids and seconds alone, with grep say",
      },
    );
  const text = Buffer.concat(pieces).toString("utf8");
  if (code !== 0) {
    throw new StageError(
      "E_DATA",
      `${JSON.stringify(command)} ended with ${code ?? "a signal"}${text.trim() ? `: ${text.trim().slice(-400)}` : " and said nothing"}`,
    );
  }
  return text;
}
