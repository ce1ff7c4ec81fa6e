import { type ChildProcess, spawn } from "node:child_process";
import { resolve } from "node:path";
import { Readable, Writable } from "node:stream";
import { main } from "../src/main.ts";

export interface Outcome {
  code: number | null;
  stdout: string;
  stderr: string;
  /** The lines of standard output as JSON. */
  json: () => Record<string, any>[];
  /** The last of them. */
  result: () => Record<string, any>;
}

function outcome(code: number | null, stdout: string, stderr: string): Outcome {
  const json = () =>
    stdout
      .split("\n")
      .filter(Boolean)
      .map((line) => JSON.parse(line) as Record<string, any>);
  return { code, stdout, stderr, json, result: () => json().at(-1)! };
}

/** Runs a command line in this process. */
export async function k3(argv: readonly string[], stdin = ""): Promise<Outcome> {
  const collect = () => {
    const pieces: string[] = [];
    const stream = new Writable({
      write(chunk, _encoding, done) {
        pieces.push(String(chunk));
        done();
      },
    });
    return { stream, text: () => pieces.join("") };
  };
  const [out, err] = [collect(), collect()];
  const code = await main(argv, {
    stdout: out.stream,
    stderr: err.stream,
    stdin: Readable.from([Buffer.from(stdin)]),
  });
  return outcome(code, out.text(), err.text());
}

export const BIN = resolve(import.meta.dirname, "../bin/k3.js");

/** Runs the installed program in a process of its own; `killAfterMs` sends SIGKILL, or another `signal`. */
export function k3Process(
  argv: readonly string[],
  {
    cwd,
    killAfterMs,
    signal = "SIGKILL",
    env,
    onStderr,
  }: {
    cwd: string;
    killAfterMs?: number;
    signal?: NodeJS.Signals;
    env?: NodeJS.ProcessEnv;
    /** Sees what was written to stderr so far, whenever there is more of it. */
    onStderr?: (text: string, child: ChildProcess) => void;
  },
): Promise<Outcome> {
  const child = spawn(process.execPath, [BIN, ...argv], {
    cwd,
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let [stdout, stderr] = ["", ""];
  child.stdout.on("data", (data: Buffer) => (stdout += data));
  child.stderr.on("data", (data: Buffer) => {
    stderr += data;
    onStderr?.(stderr, child);
  });
  const timer = killAfterMs === undefined ? undefined : setTimeout(() => child.kill(signal), killAfterMs);
  return new Promise((done, failed) => {
    child.once("error", failed);
    child.once("close", (code) => {
      clearTimeout(timer);
      done(outcome(code, stdout, stderr));
    });
  });
}
