import { spawn } from "node:child_process";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { DocsBench } from "./docs-runner.ts";

const PACKAGES = resolve(import.meta.dirname, "../..");
/** Packages of a platform hold one binary, and nothing to call. */
const names = (await readdir(PACKAGES)).filter((name) => !/-linux-/.test(name)).sort();

let bench: DocsBench;
let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "k3-readmes-"));
  bench = await DocsBench.open(root);
}, 300_000);
afterAll(async () => {
  await bench?.close();
  await rm(root, { recursive: true, force: true });
});

/** Runs a module from standard input, so that its imports are those of the package it is run in. */
function runModule(code: string, cwd: string, argv: string[], env: NodeJS.ProcessEnv) {
  const child = spawn(process.execPath, ["--input-type=module", "-", ...argv], {
    cwd,
    env,
    timeout: 120_000,
  });
  let [stdout, stderr] = ["", ""];
  child.stdout.on("data", (data: Buffer) => (stdout += data));
  child.stderr.on("data", (data: Buffer) => (stderr += data));
  child.stdin.end(code);
  return new Promise<{ code: number | null; stdout: string; stderr: string }>((done, failed) => {
    child.once("error", failed);
    child.once("close", (exit) => done({ code: exit, stdout, stderr }));
  });
}

describe("the example of each package's README runs", { timeout: 180_000 }, () => {
  it.each(names)("%s", async (name) => {
    const text = await readFile(join(PACKAGES, name, "README.md"), "utf8");
    const example = /^```js\n([\s\S]*?)^```$/m.exec(text)?.[1];
    expect(example, "a fenced js block").toBeDefined();
    const env = { ...bench.env, K3_REPO: "k3/miniature", K3_DIR: join(root, `fetched-${name}`) };
    const argv = [join(root, "model"), join(root, `trunk-${name === "pack" ? "new" : ""}`)];
    if (name !== "pack") argv[1] = join(root, "trunk");
    const { code, stdout, stderr } = await runModule(example!, join(PACKAGES, name), argv, env);
    expect({ code, stderr: code ? stderr : "" }).toEqual({ code: 0, stderr: "" });
    if (name !== "stage") expect(stdout).not.toBe("");
    // Where the README shows what its example prints, it prints that.
    const shown = /^```js\n[\s\S]*?^```\n+prints\n+```text\n([\s\S]*?)^```$/m.exec(text)?.[1];
    if (shown !== undefined) expect(stdout).toBe(shown);
  });
});
