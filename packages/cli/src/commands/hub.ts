import { serveDirectory } from "@k3/testkit";
import { whole } from "../options.ts";
import { command } from "./command.ts";

export const hubCommand = command({
  name: "hub <dir>",
  describe: "serve a directory as a repository of a loopback Hub, for trying and testing downloads",
  options: (yargs) =>
    yargs
      .positional("dir", { type: "string", demandOption: true, describe: "the directory to serve" })
      .option("port", { ...whole("port", "0 takes a free one", { min: 0, max: 65535 }), default: "0" }),
  run: async ({ dir, port }, { output, signal }) => {
    const hub = await serveDirectory(dir, { port: port! });
    const served = { endpoint: hub.endpoint, repo: hub.repo, revision: hub.commit };
    output.note(`serving ${dir} as ${hub.repo} at ${hub.commit}; Ctrl-C ends it`);
    output.result("hub", served, [`HF_ENDPOINT=${hub.endpoint} k3 fetch ${hub.repo} --dir DIR`]);
    await new Promise<void>((stopped) => {
      if (signal.aborted) stopped();
      signal.addEventListener("abort", () => stopped(), { once: true });
    });
    await hub.close();
  },
});
