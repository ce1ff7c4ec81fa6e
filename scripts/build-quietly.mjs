// Builds whatever is out of date before a command runs; silent when all goes well, so that the command's own
// output (JSON, say) stands alone. The build's output goes to standard error when it fails.
import { spawnSync } from "node:child_process";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const [major, minor] = process.versions.node.split(".").map(Number);
if (major < 20 || (major === 20 && minor < 19)) {
  console.error(`k3 needs Node 20.19 or later; this is ${process.version}.`);
  process.exit(2);
}
const turbo = resolve(root, "node_modules/.bin/turbo");
if (process.stderr.isTTY) process.stderr.write("building (a minute or two the first time) ...\r");
const run = spawnSync(turbo, ["run", "build", "--output-logs=errors-only"], {
  cwd: root,
  encoding: "utf8",
  maxBuffer: 1 << 28,
  env: { ...process.env, TURBO_TELEMETRY_DISABLED: "1" },
});
if (run.status !== 0) {
  process.stderr.write(`${run.stdout ?? ""}${run.stderr ?? ""}${run.error ? `${run.error.message}\n` : ""}`);
  console.error(
    "The build failed. It needs a C++20 compiler (g++ 11 or clang 14, or later) and CMake 3.20 or later.",
  );
  process.exit(2);
}
