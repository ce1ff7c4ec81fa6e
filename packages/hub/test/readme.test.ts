import { execFile } from "node:child_process";
import { readFile, rm, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, onTestFinished, test } from "vitest";

test("the script in the README runs as it stands, and says what its comments say", async () => {
  const readme = await readFile(new URL("../README.md", import.meta.url), "utf8");
  const [, script] = /```js\n(.*?)```/s.exec(readme)!;
  // Beside the package, so that its name resolves as it does for a user.
  const path = fileURLToPath(new URL(`./readme-${process.pid}.tmp.mjs`, import.meta.url));
  await writeFile(path, script!);
  onTestFinished(() => rm(path));
  const { stdout } = await promisify(execFile)(process.execPath, [path]);
  const [safe, unsafe] = stdout.split("\n");
  expect(safe).toBe("undefined");
  expect(unsafe).toBe('it has a ".." component');
  expect(stdout).toContain("bucket: 'resolvers', remaining: 0, resetSeconds: 55, quota: 3000");
  expect(stdout).not.toMatch(/hf_0123|abc/);
});
