import { EXIT, formatSeconds, StageError } from "@k3/stage";
import { flag, memory, text, whole } from "../options.ts";
import { pipeline } from "../pipeline/pipeline.ts";
import { DEFAULTS } from "../pipeline/same-command.ts";
import { readState, STAGES } from "../pipeline/state.ts";
import { stageLine } from "../pipeline/summary.ts";
import { command } from "./command.ts";

export const pipelineCommand = command({
  name: "pipeline [repo]",
  describe:
    "everything, from nothing to tokens; without a repository, on the miniature through a loopback Hub",
  options: (yargs) =>
    yargs
      .positional("repo", { type: "string", describe: "namespace/name on the Hub" })
      .option("revision", { ...text("revision", "commit, branch or tag"), default: "main" })
      .option("dir", text("dir", "working directory; ./k3-miniature, or ./k3-NAME of the repository"))
      .option("memory", memory("the most that a run may hold in memory, or auto"))
      .option("prompt", { ...text("prompt", "the text to continue"), default: DEFAULTS.prompt })
      .option("generate", {
        ...whole("generate", "tokens to generate at most", { min: 1, max: 100_000 }),
        default: DEFAULTS.generate,
      })
      .option("status", flag("only say which stages are finished")),
  run: async (args, { output, signal, setExit }) => {
    const dir = args.dir ?? (args.repo === undefined ? "k3-miniature" : `k3-${args.repo.split("/").at(-1)}`);
    if (args.status) {
      const state = await readState(dir);
      if (!state) {
        throw new StageError("E_DATA", `${dir} holds no pipeline`, {
          hint: `k3 pipeline --dir ${dir} starts one`,
        });
      }
      const finished = STAGES.filter((name) => state.stages[name]);
      const next = STAGES.find((name) => !state.stages[name]) ?? null;
      output.result("pipeline", { stages: state.stages, finished, next, dir }, [
        ...STAGES.map((name) => stageLine(name, state.stages[name])),
      ]);
      return;
    }
    const started = performance.now();
    let done = 0;
    let repeated = 0;
    // The prompt appears with the first of the answer: until then lines of progress would end up behind it.
    let shown = false;
    const onText = (piece: string) => {
      if (!shown) output.text(args.prompt!);
      shown = true;
      output.text(piece);
    };
    const result = await pipeline({
      repo: args.repo,
      revision: args.revision!,
      dir,
      memory: args.memory!,
      prompt: args.prompt!,
      generate: args.generate!,
      signal,
      onEvent: output.onEvent,
      onText,
      onStage: (name, stageResult, fromEarlier) => {
        if (!stageResult) return;
        if (name === "run" && !fromEarlier) onText("\n");
        done++;
        if (fromEarlier) repeated++;
        output.note(`${stageLine(name, stageResult)}${fromEarlier ? "  (finished earlier)" : ""}`);
      },
    });
    if ((result.stages.bench as { ok?: boolean }).ok === false) setExit(EXIT.data);
    const run = result.stages.run as { text?: string | null };
    output.result("pipeline", result, [
      ...(repeated === done ? [`Finished already: ${args.prompt}${run.text ?? ""}`] : []),
      `${dir}: report in ${(result.stages.bench as { out_dir?: string }).out_dir}, ${formatSeconds((performance.now() - started) / 1000)}`,
    ]);
  },
});
