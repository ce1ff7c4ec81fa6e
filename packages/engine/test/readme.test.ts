import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

test("the example in the README runs as it stands", () => {
  const root = join(import.meta.dirname, "..");
  const example = /```js\n(.*?)```/s.exec(readFileSync(join(root, "README.md"), "utf8"))![1]!;
  const out = execFileSync(process.execPath, ["--input-type=module", "-e", example], {
    cwd: root,
    encoding: "utf8",
  });
  expect(out).toMatch(/^ Paris\. end \d+\n$/);
});
