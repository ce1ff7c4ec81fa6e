import { readFileSync } from "node:fs";
import { EXIT, StageError, toStageError } from "@k3/stage";
import yargs, { type CommandModule } from "yargs";
import { benchCommand } from "./commands/bench.ts";
import { chatCommand } from "./commands/chat.ts";
import { cleanCommand } from "./commands/clean.ts";
import { doctorCommand } from "./commands/doctor.ts";
import { fetchCommand } from "./commands/fetch.ts";
import { hubCommand } from "./commands/hub.ts";
import { miniatureCommand } from "./commands/miniature.ts";
import { packCommand } from "./commands/pack.ts";
import { pipelineCommand } from "./commands/pipeline.ts";
import { planCommand } from "./commands/plan.ts";
import { runCommand } from "./commands/run.ts";
import { verifyCommand } from "./commands/verify.ts";
import type { Context } from "./context.ts";
import { humanOutput, jsonOutput, type Streams } from "./output.ts";

export interface Io extends Streams {
  stdin: Context["stdin"];
}

/**
 * Runs one command line, without the program name, and gives its exit code; it never throws and never exits.
 * SIGINT and SIGTERM stop the command at its next safe point (exit 130); a second one ends the process at once.
 */
export async function main(argv: readonly string[], io: Io = process): Promise<number> {
  const given = argv.slice(0, argv.includes("--") ? argv.indexOf("--") : argv.length);
  const debug = given.includes("--debug");
  const quiet = given.includes("--quiet");
  const output = given.includes("--json") ? jsonOutput(io, quiet) : humanOutput(io, quiet);
  const abort = new AbortController();
  const stop = () => {
    if (abort.signal.aborted) process.exit(EXIT.interrupted);
    abort.abort(
      new StageError("E_INTERRUPTED", "interrupted", {
        hint: "the same command continues where this one stopped",
      }),
    );
  };
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  for (const signal of signals) process.on(signal, stop);
  let exit: number = EXIT.ok;
  const lost = watchForLoss(io.stdout, abort);
  try {
    await parse(
      argv,
      { output, signal: abort.signal, stdin: io.stdin, setExit: (code) => (exit = code) },
      io,
    );
  } catch (error) {
    const known =
      error instanceof Error && error.name === "YError"
        ? usageError(error.message, argv)
        : toStageError(error);
    output.error(known, debug);
    exit = known.exit;
  } finally {
    for (const signal of signals) process.off(signal, stop);
    output.close();
    await drained(io.stdout);
    await drained(io.stderr);
  }
  return lost() ?? exit;
}

/**
 * Stops the command when nobody reads its results any more (`| head`) or they cannot be written (a full disk), and gives the
 * exit code for that: a reader that has seen enough is no fault.
 */
function watchForLoss(stdout: Io["stdout"], abort: AbortController): () => number | undefined {
  let code: number | undefined;
  stdout.on("error", (error: NodeJS.ErrnoException) => {
    code = error.code === "EPIPE" ? EXIT.ok : toStageError(error).exit;
    abort.abort(new StageError("E_INTERRUPTED", `the output cannot be written: ${error.message}`));
  });
  return () => code;
}

/** Resolves when everything written so far has left this process: exiting earlier would cut a long result off. */
function drained(stream: NodeJS.WritableStream): Promise<void> {
  return new Promise((done) => {
    stream.once("error", () => done());
    stream.write("", () => done());
  });
}

async function parse(argv: readonly string[], context: Context, io: Io): Promise<void> {
  const commands = [
    planCommand,
    doctorCommand,
    fetchCommand,
    verifyCommand,
    packCommand,
    runCommand,
    chatCommand,
    benchCommand,
    pipelineCommand,
    miniatureCommand,
    hubCommand,
    cleanCommand,
  ];
  const parser = yargs()
    .scriptName("k3")
    .usage("$0 COMMAND: Kimi K3 on the machine you have, from download to tokens")
    .strict()
    .parserConfiguration({
      "duplicate-arguments-array": true,
      "parse-numbers": false,
      "parse-positional-numbers": false,
    })
    .option("json", {
      type: "boolean",
      describe: "one JSON object a line on standard output, nothing else there",
    })
    .option("quiet", { type: "boolean", describe: "no progress, only results and errors" })
    .option("debug", { type: "boolean", describe: "stack traces of errors" })
    .demandCommand(1, "say which command to run; k3 --help lists them")
    .epilog(
      "Sizes: 16GB, 14GiB, 512M. Rates: 240MB/s, 1Gbit. Any interrupted command continues when run again.",
    )
    .wrap(110)
    .version(version())
    .exitProcess(false)
    .fail((message, error) => {
      throw error ?? usageError(message ?? "unusable arguments", argv);
    });
  for (const command of commands) parser.command(command(context) as CommandModule);
  let printed = "";
  await parser.parseAsync(withoutDashes(argv), {}, (_error, _argv, help) => {
    printed = help;
  });
  if (printed) io.stdout.write(`${printed}\n`);
}

/**
 * The arguments without a `--` before plain ones: yargs would not count what follows it as positional. What follows and
 * looks like a flag is refused, since it would become one.
 */
function withoutDashes(argv: readonly string[]): string[] {
  const at = argv.indexOf("--");
  if (at < 0) return [...argv];
  const rest = argv.slice(at + 1);
  const flag = rest.find((argument) => argument.startsWith("-"));
  if (flag !== undefined)
    throw usageError(
      `${flag} after -- is not a flag and no command takes it; a path like that is ./${flag}`,
      argv,
    );
  return [...argv.slice(0, at), ...rest];
}

/** What yargs complains of; also what an option's parser threw, of which yargs passes on the text as a YError. */
function usageError(message: string, argv: readonly string[]): StageError {
  const command = argv.find((argument) => /^[a-z]+$/.test(argument));
  return new StageError("E_USAGE", message, { hint: command ? `k3 ${command} --help` : "k3 --help" });
}

function version(): string {
  return (
    JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as { version: string }
  ).version;
}
