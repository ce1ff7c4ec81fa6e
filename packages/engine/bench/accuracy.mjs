#!/usr/bin/env node
// How far the elementary functions are from double precision, from the kernels' own test program.
import { spawnSync } from "node:child_process";
import { resolve } from "node:path";
import { buildKernels } from "./build-kernels.mjs";

if (process.argv.includes("--help")) {
  console.log("node packages/engine/bench/accuracy.mjs");
  process.exit(0);
}
const program = resolve(buildKernels(), "kernels_test");
const { stdout, status } = spawnSync(program, ["--thorough", "--rounds", "1"], {
  encoding: "utf8",
  maxBuffer: 1 << 26,
});
for (const line of new Set(stdout.match(/^.* ulp from the true value.*$/gm) ?? [])) console.log(line);
process.exitCode = status ?? 1;
