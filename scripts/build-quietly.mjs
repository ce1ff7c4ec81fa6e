// Builds whatever is out of date before a command runs; silent when all goes well, so that the command's own
// output (JSON, say) stands alone. The build's output goes to standard error when it fails.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { delimiter, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");

/** @param {string[]} lines what is wrong, and what to do */
function refuse(...lines) {
  console.error(lines.join("\n"));
  process.exit(2);
}

const onPath = (name) =>
  (process.env.PATH ?? "").split(delimiter).some((folder) => folder !== "" && existsSync(join(folder, name)));

const [major, minor] = process.versions.node.split(".").map(Number);
if (major < 20 || (major === 20 && minor < 19))
  refuse(`k3 needs Node 20.19 or later; this is ${process.version}.`);
const turbo = resolve(root, "node_modules/.bin/turbo");
if (!existsSync(turbo))
  refuse(
    "The build's tools are not installed.",
    "Run `npx --yes pnpm@10.34.9 install` in the checkout first.",
  );
// Turbo starts each package's build through pnpm. `npx pnpm` puts it on the PATH of what it starts.
if (!onPath("pnpm"))
  refuse(
    "pnpm is not on the PATH, and the build needs it.",
    "Start through `npx --yes pnpm@10.34.9 ...`, or install it with `corepack enable` or `npm install --global pnpm@10.34.9`.",
  );
if (process.stderr.isTTY) process.stderr.write("building (a minute or two the first time) ...\r");
const run = spawnSync(turbo, ["run", "build", "--output-logs=errors-only"], {
  cwd: root,
  encoding: "utf8",
  maxBuffer: 1 << 28,
  env: { ...process.env, TURBO_TELEMETRY_DISABLED: "1" },
});
if (run.status !== 0) {
  process.stderr.write(`${run.stdout ?? ""}${run.stderr ?? ""}${run.error ? `${run.error.message}\n` : ""}`);
  refuse(
    "The build failed; what it says is above.",
    "It needs CMake 3.20 or later and a C++20 compiler (g++ 11 or clang 14, or later): `apt-get install cmake g++` on Debian and Ubuntu.",
  );
}
