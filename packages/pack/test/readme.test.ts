import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { openTrunk } from "@k3/trunk";
import { expect, test } from "vitest";
import { temporaryDirectory, writeCheckpoint } from "./fixture.ts";

test("the example in the README runs as it stands", async () => {
  const root = join(import.meta.dirname, "..");
  const example = /```js\n(.*?)```/s.exec(readFileSync(join(root, "README.md"), "utf8"))![1]!;
  const dir = await temporaryDirectory();
  await writeCheckpoint(join(dir, "model"));
  const args = ["--input-type=module", "-e", example, "example.mjs", join(dir, "model"), join(dir, "trunk")];
  const out = execFileSync(process.execPath, args, {
    cwd: root,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "pipe"],
  });
  const { manifest } = await openTrunk(join(dir, "trunk"));
  expect(out).toContain(`became ${manifest.storedBytes} in`);
});
