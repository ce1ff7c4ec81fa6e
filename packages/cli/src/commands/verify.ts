import { canary } from "@k3/bench";
import { EXIT, formatBytes, formatSeconds, StageError } from "@k3/stage";
import { verify } from "@k3/verify";
import type { Context } from "../context.ts";
import { flag, text, whole } from "../options.ts";
import { command } from "./command.ts";

export const verifyCommand = command({
  name: "verify <dir>",
  describe: "prove that a checkpoint is complete, well formed and undamaged",
  options: (yargs) =>
    yargs
      .positional("dir", { type: "string", demandOption: true, describe: "the checkpoint" })
      .option("level", {
        choices: ["sizes", "structure", "hashes"] as const,
        default: "hashes" as const,
        describe: "how much to check; each level includes the ones before",
      })
      .option("repo", text("repo", "take sizes and hashes from this repository of the Hub"))
      .option("revision", text("revision", "at this commit"))
      .option("manifest", text("manifest", "take them from this file (ours, or a tree file of hf)"))
      .option("fail-on-extra", flag("files that the repository does not have are faults"))
      .option(
        "recheck",
        flag("read every file from the disk again, also those unchanged since they were read"),
      )
      .option("since-receipt", flag("find what was damaged since the last clean verification, to the 64 MiB"))
      .option("jobs", { ...whole("jobs", "files to hash at a time", { min: 1, max: 64 }), default: "1" })
      .option("canary", flag("also run the first layers and compare with published results")),
  run: async (args, context) => {
    if ((args.repo === undefined) !== (args.revision === undefined)) {
      throw new StageError("E_USAGE", "--repo and --revision belong together", {
        hint: "give both, or neither",
      });
    }
    const { output, signal } = context;
    const result = await verify({
      dir: args.dir,
      level: args.level,
      repo: args.repo,
      revision: args.revision,
      manifest: args.manifest,
      failOnExtra: args.failOnExtra,
      recheck: args.recheck,
      sinceReceipt: args.sinceReceipt,
      jobs: args.jobs,
      signal,
      onEvent: output.onEvent,
    });
    const lines = result.faults.flatMap(({ path, kind, expected, found, hint }) => [
      `${path}: ${kind}: expected ${expected}, found ${found}`,
      ...(hint ? [`    ${hint}`] : []),
    ]);
    lines.push(
      `${result.ok ? "ok" : counted(result.faults.length, "fault")}: ${result.checked} files, ${formatBytes(result.bytes)}, ` +
        `level ${result.level}${result.from_journal ? `, ${result.from_journal} unchanged since they were read` : ""}, ${formatSeconds(result.seconds)}`,
    );
    if (result.bytes_read > 0 && !result.direct)
      lines.push(
        "read through the page cache, at least in part: the filesystem refuses direct reads (O_DIRECT), so this may prove memory instead of the disk",
      );
    if (!result.complete)
      lines.push("not complete: this directory was asked to hold only some of the weight files");
    if (!result.ok) context.setExit(EXIT.data);
    const sung = args.canary && result.ok ? await sing(args.dir, context) : {};
    output.result("verify", { ...result, ...sung.result }, [...lines, ...(sung.lines ?? [])]);
  },
});

async function sing(
  dir: string,
  { output, signal, setExit }: Context,
): Promise<{ result?: object; lines?: string[] }> {
  const result = await canary({ modelDir: dir, signal, onEvent: output.onEvent });
  if (!result.ok) setExit(EXIT.data);
  return {
    result: { ok: result.ok, canary: result },
    lines: [
      ...result.checks
        .filter(({ ok }) => !ok)
        .map(({ what, expected, found }) => `canary: WRONG: ${what}: expected ${expected}, found ${found}`),
      `canary: ${result.checks.filter(({ ok }) => ok).length} of ${counted(result.checks.length, "check")} as expected, ` +
        `with ${counted(result.layers, "layer")}`,
    ],
  };
}

const counted = (count: number, what: string) => `${count} ${what}${count === 1 ? "" : "s"}`;
