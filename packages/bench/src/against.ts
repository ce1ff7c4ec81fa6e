import { spawn } from "node:child_process";
import { StageError, throwIfAborted } from "@k3/stage";

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
 * a number, and the median of all matches but the first (the cold one) is taken when there are several.
 * Throws E_USAGE for a pattern that finds nothing, E_DATA when the command fails.
 */
export async function runOther(
  { command, ids, seconds }: OtherEngine,
  signal: AbortSignal | undefined,
): Promise<OtherRun> {
  const text = await outputOf(command, signal);
  const found = [...text.matchAll(ids)]
    .flatMap((match) => (match[1] ?? match[0]).match(/\d+/g) ?? [])
    .map(Number);
  const times = [...text.matchAll(seconds)]
    .map((match) => Number(match[1] ?? match[0]))
    .filter(Number.isFinite);
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
  child.stdout.on("data", (piece: Buffer) => pieces.push(piece));
  child.stderr.on("data", (piece: Buffer) => pieces.push(piece));
  const code = await new Promise<number | null>((done, failed) => {
    child.once("error", failed);
    child.once("close", done);
  });
  signal?.removeEventListener("abort", stop);
  throwIfAborted(signal);
  const text = Buffer.concat(pieces).toString("utf8");
  if (code !== 0) {
    throw new StageError(
      "E_DATA",
      `${JSON.stringify(command)} ended with ${code ?? "a signal"}${text.trim() ? `: ${text.trim().slice(-400)}` : " and said nothing"}`,
    );
  }
  return text;
}
