import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { join, relative } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type Manifest, PLATFORM, PUBLISHED, ROOT, Sandbox } from "./support/workspace.ts";

const CHANGESET = join(ROOT, "node_modules/@changesets/cli/bin.js");
const pending = existsSync(join(ROOT, ".changeset/initial.md"));

// The manifests and changesets of this workspace in a scratch repository, where `changeset version` may change them.
describe("versions", () => {
  let sandbox: Sandbox;
  let scratch: string;

  beforeAll(async () => {
    sandbox = new Sandbox("http://127.0.0.1:9/"); // no registry is needed, and none is there
    scratch = join(sandbox.dir, "scratch");
    mkdirSync(scratch);
    for (const path of ["package.json", "pnpm-workspace.yaml", ".changeset"])
      cpSync(join(ROOT, path), join(scratch, path), { recursive: true });
    for (const { dir } of PUBLISHED) {
      const folder = join(scratch, relative(ROOT, dir));
      mkdirSync(folder, { recursive: true });
      cpSync(join(dir, "package.json"), join(folder, "package.json"));
    }
    symlinkSync(join(ROOT, "node_modules"), join(scratch, "node_modules"));
    sandbox.write("scratch/.gitignore", "node_modules\n");
    await git("init", "--quiet", "--initial-branch=main");
    await commit();
  });
  afterAll(() => sandbox.remove());

  const git = (...args: string[]) =>
    sandbox.must("git", ["-c", "user.name=test", "-c", "user.email=test@localhost", ...args], scratch);
  async function commit(): Promise<void> {
    await git("add", "--all");
    await git("commit", "--quiet", "--message", "Scratch");
  }
  const changeset = (command: string) => sandbox.must(process.execPath, [CHANGESET, command], scratch);
  const manifest = (folder: string) =>
    JSON.parse(readFileSync(join(scratch, "packages", folder, "package.json"), "utf8")) as Manifest;
  const versions = () =>
    Object.fromEntries(PUBLISHED.map(({ folder }) => [folder, manifest(folder).version]));

  it.skipIf(!pending)(`begin with 0.1.0${pending ? "" : " (skipped: released already)"}`, async () => {
    const { stdout } = await changeset("status");
    expect(stdout).toContain("minor");
    await changeset("version");
    expect(new Set(Object.values(versions()))).toEqual(new Set(["0.1.0"]));
    expect(readFileSync(join(scratch, "packages/cli/CHANGELOG.md"), "utf8")).toContain("First release");
    await commit();
  });

  it.each(PLATFORM.map(({ folder }) => folder))("of %s follow its library, and no other", async (folder) => {
    const library = folder.replace(/-linux-.*$/, "");
    const before = versions();
    sandbox.write("scratch/.changeset/one.md", `---\n"@k3/${library}": patch\n---\n\nA fix.\n`);
    await changeset("version");
    const after = versions();
    expect(after[library]).not.toBe(before[library]);
    expect(after[folder]).toBe(after[library]);
    expect(after["stage"]).toBe(before["stage"]);
    expect(after["cli"]).not.toBe(before["cli"]); // it depends on both, and a patch reaches those who depend on it
    await commit();
  });
});
