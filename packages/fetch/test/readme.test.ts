import { execFile } from "node:child_process";
import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, it } from "vitest";
import { atEnd, expectComplete, KIB, REPO, sampleFiles, serve, temporary } from "./support.ts";

it("the script in the README runs as it stands", async () => {
  const readme = await readFile(new URL("../README.md", import.meta.url), "utf8");
  const [, script] = /```js\n(.*?)```/s.exec(readme)!;
  const files = sampleFiles(300 * KIB, 2);
  const hub = await serve(files);
  const dir = await temporary();
  // Beside the package, so that its name resolves as it does for a user.
  const path = fileURLToPath(new URL(`./readme-${process.pid}.tmp.mjs`, import.meta.url));
  await writeFile(path, script!);
  atEnd(() => rm(path));
  const env = {
    ...process.env,
    HF_ENDPOINT: hub.endpoint,
    HF_TOKEN: "",
    K3_REPO: REPO,
    K3_DIR: join(dir, "model"),
  };
  const { stdout } = await promisify(execFile)(process.execPath, [path], { env });
  expect(stdout).toContain(`${files.length} files of ${REPO}`);
  expect(stdout).toContain("hashes verified");
  await expectComplete(join(dir, "model"), files);
});
