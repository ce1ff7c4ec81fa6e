import { censusPath, run } from "@k3/engine";
import { EXIT, formatBytes, formatSeconds, StageError } from "@k3/stage";
import type { Context } from "../context.ts";
import { runOptions, samplingOf } from "../run-options.ts";
import { command } from "./command.ts";

export const runCommand = command({
  name: "run <model_dir>",
  describe: "continue a prompt",
  options: (yargs) => runOptions(yargs),
  run: async (args, context) => {
    const { output, signal } = context;
    const result = await run({
      modelDir: args.model_dir,
      trunkDir: args.trunk,
      ...(args.ids
        ? { ids: args.ids }
        : args.promptFile !== undefined
          ? { promptFile: args.promptFile }
          : { prompt: args.prompt ?? (await readPrompt(context)) }),
      generate: args.generate,
      memory: args.memory,
      threads: args.threads,
      layers: args.layers,
      chunk: args.chunk,
      census: args.census ? censusPath(args.model_dir) : undefined,
      sampling: samplingOf(args),
      stop: args.stop,
      ignoreEos: args.ignoreEos,
      logprobs: args.logprobs,
      state: args.state,
      dumpLogits: args.dumpLogits,
      traceExperts: args.traceExperts,
      onText: output.text,
      signal,
      onEvent: output.onEvent,
    });
    if (result.stop_reason === "interrupted") context.setExit(EXIT.interrupted);
    else if (result.state_saved === false) context.setExit(EXIT.resources);
    output.result("run", result, result.text === null ? [result.generated_ids.join(",")] : [""]);
    for (const line of summary(result)) output.note(line);
  },
});

async function readPrompt({ stdin }: Context): Promise<Uint8Array> {
  if (stdin.isTTY) {
    throw new StageError("E_USAGE", "there is no prompt", {
      hint: "give --prompt TEXT, --prompt-file FILE or --ids 1,2,3, or pipe the text in",
    });
  }
  const pieces: Buffer[] = [];
  for await (const piece of stdin) pieces.push(Buffer.from(piece as Uint8Array));
  return Buffer.concat(pieces);
}

/** Prefill and decode apart, bytes really read apart from bytes that were there: never one blended figure. */
function summary(result: Awaited<ReturnType<typeof run>>): string[] {
  const of = (phase: "prefill" | "decode") => {
    const steps = result.steps.filter((step) => step.phase === phase);
    const tokens = steps.reduce((sum, step) => sum + step.tokens, 0);
    const seconds = steps.reduce((sum, step) => sum + step.seconds, 0);
    const read = steps.reduce(
      (sum, { read }) => sum + read.trunk_bytes + read.head_bytes + read.expert_bytes,
      0,
    );
    return { tokens, seconds, read };
  };
  const lines = (["prefill", "decode"] as const).flatMap((phase) => {
    const { tokens, seconds, read } = of(phase);
    if (tokens === 0) return [];
    return [
      `${phase}: ${tokens} tokens in ${formatSeconds(seconds)}, ${formatSeconds(seconds / tokens)} each, ${formatBytes(read / tokens)} read for each`,
    ];
  });
  lines.push(
    `memory: ${formatBytes(result.memory.peak_rss_bytes)} at the most, of ${formatBytes(result.memory.budget_bytes)}`,
    `stopped: ${result.stop_reason}`,
  );
  return lines;
}
