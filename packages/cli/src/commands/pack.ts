import { pack } from "@k3/pack";
import { formatBytes, formatSeconds } from "@k3/stage";
import { flag, whole } from "../options.ts";
import { command } from "./command.ts";

export const packCommand = command({
  name: "pack <model_dir> <trunk_dir>",
  describe:
    "pack the dense weights into one file that is smaller, checked, and in the order of a forward pass",
  options: (yargs) =>
    yargs
      .positional("model_dir", { type: "string", demandOption: true, describe: "the checkpoint" })
      .positional("trunk_dir", {
        type: "string",
        demandOption: true,
        describe: "where the packed trunk goes",
      })
      .option("codec", {
        choices: ["bf16", "none"] as const,
        default: "bf16" as const,
        describe: "lossless compression, or none",
      })
      .option("check", flag("decode everything and compare it with the source"))
      .option("threads", whole("threads", "encoding threads; all cores if not given", { min: 1, max: 256 }))
      .option("dry-run", flag("say what would be read and written, and how long it would take")),
  run: async (args, { output, signal }) => {
    const result = await pack({
      modelDir: args.model_dir,
      trunkDir: args.trunk_dir,
      codec: args.codec,
      check: args.check,
      threads: args.threads,
      dryRun: args.dryRun,
      signal,
      onEvent: output.onEvent,
    });
    const ratio = (result.stored_bytes / result.source_bytes).toFixed(3);
    output.result("pack", result, [
      `${formatBytes(result.source_bytes)} of weights ${args.dryRun ? "would become" : "are"} ${formatBytes(result.stored_bytes)} (${ratio}) in ${result.trunk_dir}`,
      `${result.blocks} blocks${result.resumed_blocks ? `, ${result.resumed_blocks} of them from an earlier start` : ""}, ${formatSeconds(result.seconds)}`,
    ]);
  },
});
