// Checks the formatting of all C++ sources, or mends it with --write. Skipped, visibly, where clang-format is missing.
import { spawnSync } from "node:child_process";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const files = spawnSync("git", ["ls-files", "*.cc", "*.h"], { cwd: root, encoding: "utf8" })
  .stdout.split("\n")
  .filter(Boolean);
const program = ["clang-format-19", "clang-format"].find(
  (name) => spawnSync(name, ["--version"]).status === 0,
);
if (!program) {
  console.log("clang-format: skipped, it is not installed (apt-get install clang-format-19)");
  process.exit(0);
}
const mode = process.argv.includes("--write") ? ["-i"] : ["--dry-run", "--Werror"];
const result = spawnSync(program, [...mode, ...files], { cwd: root, encoding: "utf8" });
process.stderr.write(result.stderr);
process.exit(result.status ?? 1);
