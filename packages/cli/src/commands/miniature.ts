import { formatBytes } from "@k3/stage";
import { makeMiniature } from "@k3/testkit";
import { command } from "./command.ts";

export const miniatureCommand = command({
  name: "miniature <dir>",
  describe: "write a miniature Kimi K3 checkpoint of a few megabytes that knows a handful of sentences",
  options: (yargs) =>
    yargs.positional("dir", { type: "string", demandOption: true, describe: "where to write it" }),
  run: async ({ dir }, { output, signal }) => {
    const result = await makeMiniature(dir, { signal, onEvent: output.onEvent });
    output.result("miniature", result, [
      `${dir}: ${result.files.length} files, ${formatBytes(result.bytes)}`,
    ]);
  },
});
