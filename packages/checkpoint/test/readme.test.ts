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
  // The figures are published: 136,990,274,560 bytes with the embedding row of 14,336 (k3-model 6), and the file's size.
  expect(out).toContain("136990260224 bytes");
  expect(out).toContain("model-00002-of-000096.safetensors: 16990911504 bytes");
});
