import { execFile } from "node:child_process";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { expectToRun } from "./support/checks.ts";
import { type Registry, startRegistry } from "./support/registry.ts";
import { PUBLISH, pnpm, ROOT, Sandbox } from "./support/workspace.ts";

const nightly = process.env["K3_NIGHTLY"] ? undefined : "K3_NIGHTLY is not set";

// Node-API promises that one binary runs on all of them; here it does, built by the Node.js that runs this test.
describe.skipIf(nightly)(`the same binaries${nightly ? ` (skipped: ${nightly})` : ""}`, () => {
  let registry: Registry;
  let sandbox: Sandbox;
  let project: string;

  beforeAll(async () => {
    registry = await startRegistry();
    sandbox = new Sandbox(registry.url);
    await sandbox.must(...pnpm(PUBLISH), ROOT);
    project = sandbox.project("project");
    await sandbox.must("npm", ["install", "@k3/cli"], project);
  });
  afterAll(async () => {
    sandbox.remove();
    await registry.close();
  });

  it.for([20, 22, 24])("run on Node.js %i", async (major, context) => {
    const dir = join(sandbox.dir, `node-${major}`);
    await mkdir(dir);
    // From the registry that this machine's npm uses, not from ours.
    const args = ["install", "--prefix", dir, "--no-audit", "--no-fund", `node@${major}`];
    const offline = await promisify(execFile)("npm", args, { cwd: dir }).then(
      () => false,
      (error: Error & { stderr?: string }) => {
        if (/ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN/.test(error.stderr ?? "")) return true;
        throw error;
      },
    );
    if (offline) context.skip("npm's registry is not reachable");
    const node = join(dir, "node_modules/node/bin/node");
    expect((await sandbox.must(node, ["--version"], dir)).stdout).toMatch(new RegExp(`^v${major}\\.`));
    await expectToRun(sandbox, project, [node, "node_modules/@k3/cli/bin/k3.js"]);
  });
});
