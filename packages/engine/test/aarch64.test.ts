// The native code of this package and of @k3/trunk, compiled for AArch64 and run in an emulator: NEON must give the bits of
// the scalar code, and a build from source must find nothing that only x86-64 has.
import { execFile, spawnSync } from "node:child_process";
import { resolve } from "node:path";
import { promisify } from "node:util";
import { type Needed, title } from "@k3/testkit";
import { expect, it } from "vitest";

const there = ["aarch64-linux-gnu-g++", "qemu-aarch64"].every(
  (tool) => spawnSync(tool, ["--version"]).status === 0,
);
const tools: Needed = there
  ? { path: "/usr/bin", skip: undefined }
  : { path: undefined, skip: "g++-aarch64-linux-gnu or qemu-user is not installed" };
const rounds = process.env["K3_NIGHTLY"] === "1" ? "5000" : "60";

it.skipIf(!there)(
  title("on AArch64 both addons compile, and kernels and codec give the bits of the scalar code", tools),
  async () => {
    const script = resolve(import.meta.dirname, "../scripts/cross-check.mjs");
    const { stdout } = await promisify(execFile)(process.execPath, [script, "--rounds", rounds], {
      maxBuffer: 1 << 26,
    });
    expect(stdout.match(/^neon: done/gm)).toHaveLength(2);
    expect(stdout.match(/^[1-9]\d+ passed, 0 failed$/gm)).toHaveLength(2);
  },
  3_600_000,
);
