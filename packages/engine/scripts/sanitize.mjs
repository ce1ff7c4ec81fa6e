#!/usr/bin/env node
// The engine's tests under sanitizers: `node scripts/sanitize.mjs address,undefined` or `thread`, then names of test
// files. Builds the addon with them into build-<names> and runs vitest with the runtime preloaded into node.
import { spawnSync } from "node:child_process";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const [sanitizers = "address,undefined", ...given] = process.argv.slice(2);
const tests =
  given.length > 0
    ? given
    : [
        "test/same-answer",
        "test/session",
        "test/lifecycle",
        "test/run.test",
        "test/faults",
        "test/hostile-tables",
      ];

const run = (command, args, env = {}) => {
  const { status } = spawnSync(command, args, {
    cwd: root,
    stdio: "inherit",
    env: { ...process.env, ...env },
  });
  if (status !== 0) process.exit(status ?? 1);
};
const runtime = (name) =>
  spawnSync(process.env.CXX ?? "c++", [`-print-file-name=lib${name}.so`], { encoding: "utf8" }).stdout.trim();

run(process.execPath, ["scripts/build-native.mjs"], { K3_SANITIZE: sanitizers });
const build = resolve(root, `build-${sanitizers.replaceAll(",", "-")}`);
run(process.execPath, ["../../node_modules/vitest/vitest.mjs", "run", ...tests], {
  LD_PRELOAD: sanitizers.includes("thread") ? runtime("tsan") : `${runtime("asan")} ${runtime("stdc++")}`,
  K3_ENGINE_ADDON: resolve(build, "Release/k3.node"),
  // Node itself never frees some of what it allocates; only what the addon does is of interest here.
  ASAN_OPTIONS: "detect_leaks=0:abort_on_error=0:halt_on_error=1",
  UBSAN_OPTIONS: "halt_on_error=1:print_stacktrace=1",
  TSAN_OPTIONS: `halt_on_error=1:second_deadlock_stack=1:suppressions=${resolve(root, "scripts/tsan-suppressions.txt")}`,
});
