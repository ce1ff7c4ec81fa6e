import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import {
  EXAMPLES,
  expectExampleToLink,
  expectToNameTheBuild,
  expectToRun,
  expectTypesToResolve,
} from "./support/checks.ts";
import { type Registry, startRegistry } from "./support/registry.ts";
import {
  LIBRARIES,
  type Manifest,
  NATIVE,
  PACKABLE,
  PLATFORM,
  pnpm,
  ROOT,
  Sandbox,
  SELECT,
  UNPACKABLE,
} from "./support/workspace.ts";

// What `pnpm pack` makes of each package, installed by npm from the files. The registry has the packages of others only.
describe("packages as tarballs", () => {
  let registry: Registry;
  let sandbox: Sandbox;
  let project: string;
  let tarballs: Map<string, { files: string[]; manifest: Manifest }>;

  beforeAll(async () => {
    registry = await startRegistry();
    sandbox = new Sandbox(registry.url);
    const packs = join(sandbox.dir, "packs");
    await sandbox.must(...pnpm([...SELECT, "pack", "--pack-destination", packs]), ROOT);
    tarballs = new Map();
    const dependencies: Record<string, string> = {};
    for (const file of readdirSync(packs)) {
      const { stdout: list } = await sandbox.must("tar", ["-tzf", file], packs);
      const { stdout } = await sandbox.must("tar", ["-xzOf", file, "package/package.json"], packs);
      const manifest = JSON.parse(stdout) as Manifest;
      tarballs.set(manifest.name, {
        manifest,
        files: list
          .trim()
          .split("\n")
          .map((path) => path.replace(/^package\//, "")),
      });
      dependencies[manifest.name] = `file:../packs/${file}`;
    }
    // npm refuses what is named and is for another processor.
    const foreign = PLATFORM.filter((each) => !NATIVE.includes(each));
    for (const { manifest } of foreign) delete dependencies[manifest.name];
    project = sandbox.project("project", { ...dependencies, "@types/node": "*" });
    await sandbox.must("npm", ["install"], project);
  });
  afterAll(async () => {
    sandbox.remove();
    await registry.close();
  });

  const reasons = [...UNPACKABLE].map(([folder, why]) => `${folder}: ${why}`).join("; ");
  it(`are all that is published${reasons ? ` (but those skipped, ${reasons})` : ""}`, () => {
    expect([...tarballs.keys()].sort()).toEqual(PACKABLE.map(({ manifest }) => manifest.name).sort());
  });

  it.each(PACKABLE.map(({ manifest }) => manifest.name))("%s holds what it has to, and no more", (name) => {
    const { files, manifest } = tarballs.get(name)!;
    expect(files).toEqual(expect.arrayContaining(["package.json", "README.md", "LICENSE"]));
    expect(
      files.filter((file) => /(^|\/)(src|test|bench|build)\/|\.tsbuildinfo$|\.map$|\.tgz$/.test(file)),
    ).toEqual([]);
    if (manifest.main) expect(files).toContain(manifest.main);
    for (const script of ["preinstall", "install", "postinstall"])
      expect(manifest.scripts ?? {}).not.toHaveProperty(script);
    const ranges = Object.values({ ...manifest.dependencies, ...manifest.optionalDependencies });
    expect(ranges.filter((range) => !/^\d+\.\d+\.\d+$/.test(range))).toEqual([]);
    for (const target of Object.values(manifest.bin ?? {})) expect(files).toContain(target);
  });

  it("need nothing that the lockfile does not have", () => {
    // npm asks for ours too before it looks into the tarballs.
    expect(registry.missing.filter((path) => !path.startsWith("/@k3%2f"))).toEqual([]);
  });

  it("run: version, miniature, and a sentence that it knows", () => expectToRun(sandbox, project));

  it.each(EXAMPLES)("offer what the example in the README of $folder imports", (library) =>
    expectExampleToLink(library, sandbox, "project"),
  );

  it("have types that a strict project can use", () => expectTypesToResolve(sandbox, "project"));

  it("without the binaries name the commands that build them, and these work", async () => {
    for (const { manifest } of NATIVE) {
      const folder = join(project, "node_modules", manifest.name);
      expect(existsSync(folder)).toBe(true);
      rmSync(folder, { recursive: true });
    }
    await expectToNameTheBuild(sandbox, project);
    const isa = [
      "--input-type=module",
      "--eval",
      'console.log((await import("@k3/trunk")).trunkAddon().isa())',
    ];
    expect((await sandbox.run("node", isa, project)).stderr).toContain("npx k3-trunk-build");

    await sandbox.must("npx", ["k3-trunk-build"], project);
    expect((await sandbox.must("node", isa, project)).stdout).toMatch(/^(scalar|avx2|avx512|neon)\n$/);
    await sandbox.must("npx", ["k3-engine-build"], project);
    await expectToRun(sandbox, project);
  });

  it("ship the licence of the repository", () => {
    for (const { manifest } of LIBRARIES) {
      const licence = join(project, "node_modules", manifest.name, "LICENSE");
      expect(readFileSync(licence, "utf8")).toBe(readFileSync(join(ROOT, "LICENSE"), "utf8"));
    }
  });
});
