import { type BenchPoint, bench, cacheSim, compareRuns, PHASES, pointLabel } from "@k3/bench";
import { EXIT, formatSeconds, StageError } from "@k3/stage";
import type { Argv, Options } from "yargs";
import type { Context } from "../context.ts";
import { flag, sizes, text, texts, whole, wholes } from "../options.ts";
import { type Common, command } from "./command.ts";

const compareCommand = command({
  name: "compare <a> <b>",
  describe: "compare two results of k3 bench; runs that differ in model, prompt or machine are refused",
  options: (yargs) =>
    yargs
      .positional("a", { type: "string", demandOption: true, describe: "A.json" })
      .positional("b", { type: "string", demandOption: true, describe: "B.json" })
      .option("force", flag("compare even runs that differ in model, prompt or machine")),
  run: async ({ a, b, force }, { output }) => {
    const result = await compareRuns(a, b, { force });
    output.result("bench compare", result, result.lines);
  },
});

const cacheSimCommand = command({
  name: "cache-sim <trace>",
  describe: "replay a trace of chosen experts over cache policies and sizes",
  options: (yargs) =>
    yargs
      .positional("trace", {
        type: "string",
        demandOption: true,
        describe: "a file of k3 run --trace-experts",
      })
      .option("size", sizes("size", "a cache size; several may be given"))
      .option(
        "expert-bytes",
        whole("expert-bytes", "bytes of one expert, where the trace does not say", { min: 1 }),
      ),
  run: async (args, { output }) => {
    const result = await cacheSim(args.trace, { sizes: args.size, expertBytes: args.expertBytes });
    output.result("bench cache-sim", result, result.lines);
  },
});

const phases = ({ median }: BenchPoint) =>
  PHASES.map((phase) => {
    const seconds = median[phase];
    return `${phase.replace("_", " ")} ${seconds === null ? "not measured" : formatSeconds(seconds)}`;
  }).join(", ");

/** An option of `bench` itself: its subcommands would take it and do nothing with it. */
const ours = <T extends Options>(option: T) => ({ ...option, global: false });

export function benchCommand(context: Context) {
  return command({
    name: "bench [model_dir]",
    describe:
      "measure a model: cold start, prefill and sustained decode apart, bytes owed against bytes read",
    options: (yargs: Argv<Common>) =>
      yargs
        .command(compareCommand(context))
        .command(cacheSimCommand(context))
        // Not demanded of yargs, which would demand it of the subcommands too; and ours, or their help would list it.
        .option("model_dir", ours({ type: "string" }))
        .positional("model_dir", { type: "string", describe: "the checkpoint" })
        .option(
          "trunk",
          ours(texts("trunk", "its packed trunk, or none; several measure their codecs side by side")),
        )
        .option(
          "runs",
          ours(
            whole("runs", "runs of each point; 3, or 4 with --against or several --trunk", {
              min: 1,
              max: 1000,
            }),
          ),
        )
        .option("memory", ours(sizes("memory", "a memory budget; several make a ladder")))
        .option(
          "threads",
          ours(wholes("threads", "a number of threads; several may be given", { min: 1, max: 1024 })),
        )
        .option("prompt", ours(texts("prompt", "a prompt; several may be given")))
        .option(
          "generate",
          ours({
            ...whole("generate", "tokens to generate in each run", { min: 1, max: 100_000 }),
            default: "8",
          }),
        )
        .option(
          "cold",
          ours({
            choices: ["drop", "evict", "none"] as const,
            describe:
              "how caches are emptied before a run: drop (root), evict (this model's files), none (declared warm)",
          }),
        )
        .option("out", ours(text("out", "directory for the report; k3-bench if not given")))
        .option("against", ours(text("against", "another engine's command line, measured in turn with ours")))
        .option(
          "ids-pattern",
          ours(text("ids-pattern", "regular expression that finds the generated ids in its output")),
        )
        .option(
          "seconds-pattern",
          ours(text("seconds-pattern", "regular expression that finds its seconds per token")),
        ),
    run: async (args, { output, signal, setExit }) => {
      if (args.model_dir === undefined)
        throw new StageError("E_USAGE", "k3 bench needs a model_dir", { hint: "k3 bench --help" });
      const result = await bench({
        modelDir: args.model_dir,
        trunkDir: args.trunk?.map((dir) => (dir === "none" ? null : dir)),
        runs: args.runs,
        memory: args.memory,
        threads: args.threads,
        prompts: args.prompt,
        generate: args.generate,
        cold: args.cold,
        outDir: args.out,
        against: args.against,
        idsPattern: args.idsPattern,
        secondsPattern: args.secondsPattern,
        signal,
        onEvent: output.onEvent,
      });
      if (!result.ok) setExit(EXIT.data);
      output.result("bench", result, [
        ...result.points.map(
          (point) =>
            `${pointLabel(point, result.points)}, ${JSON.stringify(point.prompt)}, ${point.runs.length} runs: ${phases(point)}`,
        ),
        ...result.lines,
        `report in ${result.out_dir}`,
      ]);
    },
  })(context);
}
