import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { ROOT } from "./support/workspace.ts";

// A checkout of its own, with what a newcomer may lack.
let checkout: string;
beforeAll(() => {
  checkout = mkdtempSync(join(tmpdir(), "k3-checkout-"));
  mkdirSync(join(checkout, "scripts"));
  cpSync(join(ROOT, "scripts/build-quietly.mjs"), join(checkout, "scripts/build-quietly.mjs"));
  mkdirSync(join(checkout, "bin"));
  symlinkSync(process.execPath, join(checkout, "bin/node"));
});
afterAll(() => rmSync(checkout, { recursive: true }));

const build = () => {
  const path = join(checkout, "bin");
  return spawnSync(process.execPath, [join(checkout, "scripts/build-quietly.mjs")], {
    encoding: "utf8",
    env: { PATH: path },
  });
};
const program = (path: string, body: string) => {
  mkdirSync(join(checkout, path, ".."), { recursive: true });
  writeFileSync(join(checkout, path), `#!/bin/sh\n${body}\n`, { mode: 0o755 });
};

it("the build names what is missing: the tools, then pnpm, then what the build itself complains about", () => {
  const tools = build();
  expect(tools.stderr).toContain("tools are not installed");
  expect(tools.stderr).toContain("pnpm@10.34.9 install");
  program("node_modules/.bin/turbo", "echo cmake is not installed; exit 1");
  const pnpm = build();
  expect(pnpm.stderr).toContain("pnpm is not on the PATH");
  expect(pnpm.stderr).not.toContain("C++20");
  program("bin/pnpm", "exit 0");
  const compiler = build();
  expect(compiler.stderr).toMatch(/^cmake is not installed\n[\s\S]*C\+\+20 compiler/);
  expect([tools.status, pnpm.status, compiler.status]).toEqual([2, 2, 2]);
  program("node_modules/.bin/turbo", "exit 0");
  expect(build()).toMatchObject({ status: 0, stdout: "", stderr: "" });
});
