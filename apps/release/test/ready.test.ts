import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type Manifest, PUBLISHED, ROOT } from "./support/workspace.ts";

// The manifests of this workspace in a scratch folder, as they are before the owners have named their repository.
describe("a release is refused", () => {
  let scratch: string;
  const manifestOf = (folder: string) => join(scratch, "packages", folder, "package.json");
  beforeAll(() => {
    scratch = mkdtempSync(join(tmpdir(), "k3-ready-"));
    mkdirSync(join(scratch, "scripts"));
    cpSync(join(ROOT, "scripts/release-ready.mjs"), join(scratch, "scripts/release-ready.mjs"));
    for (const { folder, manifest } of PUBLISHED) {
      const { repository: _, ...rest } = manifest as Manifest & { repository?: unknown };
      mkdirSync(join(scratch, "packages", folder), { recursive: true });
      writeFileSync(manifestOf(folder), `${JSON.stringify(rest, null, 2)}\n`);
    }
  });
  afterAll(() => rmSync(scratch, { recursive: true }));

  const ready = (repository?: string, ...args: string[]) => {
    const { GITHUB_REPOSITORY: _, ...env } = process.env;
    return spawnSync(process.execPath, [join(scratch, "scripts/release-ready.mjs"), ...args], {
      encoding: "utf8",
      env: repository === undefined ? env : { ...env, GITHUB_REPOSITORY: repository },
    });
  };

  it("until every published manifest names the repository that publishes it", () => {
    const none = ready("someone/k3");
    expect(none.status).toBe(1);
    for (const { folder } of PUBLISHED)
      expect(none.stderr).toContain(`packages/${folder}/package.json has no field "repository"`);
    expect(none.stderr).toContain("release-ready.mjs --write someone/k3");

    expect(ready(undefined, "--write", "https://github.com/someone/k3").status).toBe(2);
    expect(ready(undefined, "--write", "someone/k3")).toMatchObject({ status: 0, stderr: "" });
    expect(ready("someone/k3")).toMatchObject({ status: 0, stderr: "" });
    expect(ready()).toMatchObject({ status: 0, stderr: "" });
    const { folder, manifest } = PUBLISHED[0]!;
    const written = JSON.parse(readFileSync(manifestOf(folder), "utf8"));
    expect(written).toEqual({
      ...manifest,
      // https://docs.npmjs.com/cli/v10/configuring-npm/package-json#repository
      repository: {
        type: "git",
        url: "git+https://github.com/someone/k3.git",
        directory: `packages/${folder}`,
      },
    });

    const fork = ready("someone-else/k3");
    expect(fork.status).toBe(1);
    expect(fork.stderr).toContain("npm would refuse the provenance");
  });

  it("when one of them names another", () => {
    expect(ready(undefined, "--write", "someone/k3").status).toBe(0);
    const { folder } = PUBLISHED.at(-1)!;
    const text = readFileSync(manifestOf(folder), "utf8");
    writeFileSync(manifestOf(folder), text.replace("someone/k3", "someone/other"));
    const { status, stderr } = ready("someone/k3");
    expect(status).toBe(1);
    expect(stderr.split("\n").filter((line) => line.startsWith("packages/"))).toHaveLength(1);
    expect(stderr).toContain(`packages/${folder}/package.json names`);
  });
});
