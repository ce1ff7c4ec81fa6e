import { readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { formatBytes, lockFile, STATE_DIRECTORY, StageError } from "@k3/stage";
import { flag } from "../options.ts";
import { command } from "./command.ts";

export const cleanCommand = command({
  name: "clean <dir>",
  describe: "show what unfinished downloads of a directory take, and remove them with --yes",
  options: (yargs) =>
    yargs
      .positional("dir", { type: "string", demandOption: true, describe: "a directory that k3 fetch filled" })
      .option("yes", flag("really remove")),
  run: async ({ dir, yes }, { output }) => {
    const parts = join(dir, STATE_DIRECTORY, "parts");
    if (!(await stat(dir).catch(() => undefined))?.isDirectory()) {
      throw new StageError("E_USAGE", `${dir} is not a directory`);
    }
    // A running download holds this lock; its parts must not be pulled away under it.
    const lock = await lockFile(join(dir, STATE_DIRECTORY, "lock"), "cleaning");
    try {
      const files: { path: string; bytes: number }[] = [];
      for (const name of await readdir(parts).catch(() => [])) {
        const path = join(parts, name);
        files.push({ path, bytes: (await stat(path)).blocks * 512 });
      }
      const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
      if (yes) for (const file of files) await rm(file.path, { recursive: true });
      output.result("clean", { dir, files: files.map((file) => file.path), bytes, removed: yes === true }, [
        ...files.map((file) => `${file.path}  ${formatBytes(file.bytes)}`),
        `${formatBytes(bytes)} of unfinished downloads${yes ? " removed" : files.length ? "; remove them with --yes" : ""}`,
      ]);
    } finally {
      await lock.release();
    }
  },
});
