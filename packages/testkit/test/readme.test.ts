import { execFile } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { withTempDir } from "../src/index.ts";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");

test("the README's example runs and prints what it says", async () => {
  const readme = await readFile(join(root, "README.md"), "utf8");
  const [, example] = /```js\n([\s\S]*?)```/.exec(readme)!;
  const [, expected] = /```text\n([\s\S]*?)```/.exec(readme)!;
  await withTempDir(async (dir) => {
    // Outside the package its name does not resolve; the built entry is what the name stands for.
    const entry = new URL("../dist/index.js", import.meta.url).href;
    const script = join(dir, "example.mjs");
    await writeFile(script, example!.replace('"@k3/testkit"', JSON.stringify(entry)));
    const { stdout } = await promisify(execFile)(process.execPath, [script]);
    expect(stdout).toBe(expected);
  });
});
