import { existsSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { expectToNameTheBuild, expectToRun } from "./support/checks.ts";
import { type Registry, startRegistry } from "./support/registry.ts";
import { LIBRARIES, NATIVE, PACKABLE, PLATFORM, PUBLISH, pnpm, ROOT, Sandbox } from "./support/workspace.ts";

const nightly = process.env["K3_NIGHTLY"] ? undefined : "K3_NIGHTLY is not set";
const title = (name: string) => `${name}${nightly ? ` (skipped: ${nightly})` : ""}`;
const NAMES = LIBRARIES.map(({ manifest }) => manifest.name);

// As a release does it: published to a registry (on loopback), installed from there by name.
describe("packages from a registry", () => {
  let registry: Registry;
  let sandbox: Sandbox;
  const installed = (project: string, name: string) => existsSync(join(project, "node_modules", name));

  beforeAll(async () => {
    registry = await startRegistry();
    sandbox = new Sandbox(registry.url);
    await sandbox.must(...pnpm(PUBLISH), ROOT);
  });
  afterAll(async () => {
    sandbox.remove();
    await registry.close();
  });

  async function withoutBinaries(name: string, flag: string): Promise<void> {
    const project = sandbox.project(name);
    await sandbox.must("npm", ["install", "@k3/cli", flag], project);
    for (const { manifest } of PLATFORM) expect(installed(project, manifest.name)).toBe(false);
    await expectToNameTheBuild(sandbox, project);
  }

  it("are published once each", async () => {
    const all = PACKABLE.map(({ manifest }) => `${manifest.name}@${manifest.version}`).sort();
    expect([...registry.published].sort()).toEqual(all);
    await sandbox.must(...pnpm(PUBLISH), ROOT);
    expect([...registry.published].sort()).toEqual(all);
  });

  it("leave no binary behind in the workspace, where the loader would find it", () => {
    for (const { dir, manifest } of PLATFORM) expect(existsSync(join(dir, manifest.main!))).toBe(false);
  });

  it("bring the binaries along when npm installs the command, and run", async () => {
    const project = sandbox.project("npm");
    await sandbox.must("npm", ["install", "@k3/cli"], project);
    const brought = PLATFORM.filter(({ manifest }) => installed(project, manifest.name));
    expect(brought).toEqual(NATIVE);
    expect(brought).toHaveLength(2);
    await expectToRun(sandbox, project);
  });

  it("install on another processor without the binaries, and say what to do", () =>
    withoutBinaries("riscv64", "--cpu=riscv64"));

  it.skipIf(nightly)(title("install beside another C library without the binaries"), () =>
    withoutBinaries("musl", "--libc=musl"),
  );

  it("declare all that they import: pnpm gives each package nothing else", async () => {
    const project = sandbox.project("pnpm");
    await sandbox.must(...pnpm(["add", "--store-dir", "../pnpm-store", ...NAMES]), project);
    const file = sandbox.write("pnpm/all.mjs", NAMES.map((name) => `import "${name}";\n`).join(""));
    await sandbox.must(process.execPath, [file], project);
    await expectToRun(sandbox, project, ["node_modules/.bin/k3"]);
  });

  it.skipIf(nightly).each(NAMES)(title("%s works alone in an empty project"), async (name) => {
    const project = sandbox.project(name.replace("@k3/", "alone-"));
    await sandbox.must("npm", ["install", name], project);
    const script = `await import(${JSON.stringify(name)})`;
    await sandbox.must(process.execPath, ["--input-type=module", "--eval", script], project);
  });
});
