import { existsSync } from "node:fs";
import { join } from "node:path";
import { miniatureSamples, title } from "@k3/testkit";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { ARM64, crossCompiler, emulated, nodeForArm64 } from "./support/emulator.ts";
import { type Registry, startRegistry } from "./support/registry.ts";
import { PLATFORM, PUBLISH, pnpm, ROOT, Sandbox } from "./support/workspace.ts";

const [compiler, node] = [crossCompiler(), nodeForArm64()];

// The binaries that the cross compiler makes, published, and installed as npm does it on a machine with such a processor.
describe.skipIf(compiler.skip)(title("packages for AArch64", compiler), () => {
  let registry: Registry;
  let sandbox: Sandbox;
  let project: string;
  const folderOf = (name: string) => join(project, "node_modules", name);

  beforeAll(async () => {
    registry = await startRegistry();
    sandbox = new Sandbox(registry.url);
    await sandbox.must(...pnpm(PUBLISH), ROOT);
    project = sandbox.project("project");
    await sandbox.must("npm", ["install", "@k3/cli", "--os=linux", "--cpu=arm64", "--libc=glibc"], project);
  });
  afterAll(async () => {
    sandbox.remove();
    await registry.close();
  });

  it("npm brings the two binaries for it, and no other", () => {
    expect(ARM64).toHaveLength(2);
    expect(PLATFORM.filter(({ manifest }) => existsSync(folderOf(manifest.name)))).toEqual(ARM64);
  });

  it.each(ARM64)("$folder is a library of machine code for AArch64", async ({ manifest }) => {
    const file = join(folderOf(manifest.name), manifest.main!);
    const { stdout } = await sandbox.must("readelf", ["--file-header", file], project);
    expect(stdout).toMatch(/^ +Machine: +AArch64$/m);
    expect(stdout).toMatch(/^ +Type: +DYN /m);
  });

  describe.skipIf(node.skip)(title("in an emulator", node), () => {
    // Titles and constants are made even when all of it is skipped.
    const [command, ...start] = emulated(node.path ?? "");
    const k3 = join("node_modules", "@k3/cli/bin/k3.js");
    const there = async (...args: string[]) =>
      (await sandbox.must(command, [...start, ...args], project)).stdout;
    const evaluated = async (script: string, cwd: string) =>
      (await sandbox.must(command, [...start, "--input-type=module", "--eval", script], cwd)).stdout;

    it("give the ids that the miniature has learned, from the packed trunk too", async () => {
      const { prompt, completionIds } = miniatureSamples()[0]!;
      // Made here, which needs no binary: in the emulator that alone takes minutes.
      await sandbox.must(process.execPath, [k3, "miniature", "miniature", "--quiet"], project);
      await there(k3, "pack", "miniature", "trunk", "--quiet");
      for (const trunk of [[], ["--trunk", "trunk"]]) {
        const lines = await there(k3, "run", "miniature", ...trunk, "--prompt", prompt, "--json");
        const result = JSON.parse(lines.trim().split("\n").at(-1)!);
        expect(result).toMatchObject({ type: "result", generated_ids: completionIds });
      }
    });

    it("load the installed files, and use NEON", async () => {
      const script = `
        import { instructionSets, nativeFile } from "@k3/engine";
        import { trunkAddon } from "@k3/trunk";
        console.log(JSON.stringify([process.arch, nativeFile().path, instructionSets(), trunkAddon().isa()]));`;
      const engine = join(folderOf("@k3/engine-linux-arm64-gnu"), "k3.node");
      expect(JSON.parse(await evaluated(script, project))).toEqual([
        "arm64",
        engine,
        ["neon", "scalar"],
        "neon",
      ]);
    });

    it("in a clone, where the packages are links without a binary, the loader finds none and says so", async () => {
      const script = `
        import { nativeFile } from "@k3/engine";
        try { console.log(nativeFile().path); } catch ({ code, message }) { console.log(code + " " + message); }`;
      const stdout = await evaluated(script, join(ROOT, "packages/engine"));
      expect(stdout).toMatch(/^E_CONFIG the native part of @k3\/engine is not there:\n/);
      expect(stdout).toMatch(/^- @k3\/engine-linux-arm64-gnu: not installed$/m);
    });
  });
});
