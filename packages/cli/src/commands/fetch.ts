import { fetchSnapshot } from "@k3/fetch";
import { formatBytes, formatSeconds } from "@k3/stage";
import { flag, rate, text, texts, whole } from "../options.ts";
import { command } from "./command.ts";

export const fetchCommand = command({
  name: "fetch <repo>",
  describe: "download a repository of the Hugging Face Hub at a commit; continues whatever was begun",
  options: (yargs) =>
    yargs
      .positional("repo", { type: "string", demandOption: true, describe: "namespace/name on the Hub" })
      .option("revision", {
        ...text("revision", "commit, branch or tag; resolved to a commit and printed"),
        default: "main",
      })
      .option("dir", { ...text("dir", "the directory to download into"), demandOption: true })
      .option("concurrency", { ...whole("concurrency", "connections", { min: 1, max: 16 }), default: "8" })
      .option("limit-rate", rate("limit-rate", "the most to download per second, like 50MB or 1Gbit"))
      .option("endpoint", text("endpoint", "another Hub than HF_ENDPOINT or https://huggingface.co"))
      .option("cdn-host", texts("cdn-host", "a further host that may serve file contents"))
      .option("include", texts("include", "only files that match this pattern"))
      .option("exclude", texts("exclude", "no files that match this pattern"))
      .option("first", texts("first", "files to take before all others"))
      .option("repair", flag("fetch again only the chunks that a verification found damaged"))
      .option("adopt-partials", flag("use unfinished files that hf download left behind"))
      .option("switch-revision", flag("allow another commit than the one this directory holds")),
  run: async (args, { output, signal }) => {
    const result = await fetchSnapshot({
      repo: args.repo,
      revision: args.revision!,
      dir: args.dir!,
      concurrency: Number(args.concurrency),
      limitRate: args.limitRate,
      endpoint: args.endpoint,
      cdnHosts: args.cdnHost,
      include: args.include,
      exclude: args.exclude,
      first: args.first,
      repair: args.repair,
      adoptPartials: args.adoptPartials,
      switchRevision: args.switchRevision,
      signal,
      onEvent: output.onEvent,
    });
    const fresh =
      result.downloaded_bytes > 0
        ? `${formatBytes(result.downloaded_bytes)} downloaded`
        : args.repair && result.files === 0
          ? "nothing was damaged"
          : "everything was there already";
    output.result("fetch", result, [
      `${result.repo} at ${result.revision}`,
      `${result.files} ${result.files === 1 ? "file" : "files"}, ${formatBytes(result.bytes)} in ${result.dir}: ${fresh}, ${formatSeconds(result.seconds)}`,
    ]);
  },
});
