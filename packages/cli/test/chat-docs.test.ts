// Runs every example of docs/chat.md in one directory and compares what it prints with what the page says.
import { spawnSync } from "node:child_process";
import { chmodSync, mkdirSync, readFileSync, renameSync, symlinkSync, writeFileSync } from "node:fs";
import { delimiter, join, resolve } from "node:path";
import { beforeAll, expect, test } from "vitest";
import { workplace } from "./chat-fixture.ts";
import { BIN } from "./harness.ts";

const page = readFileSync(new URL("../../../docs/chat.md", import.meta.url), "utf8");
const examples = [
  ...page.matchAll(
    /^## ([^\n]+)\n(?:(?!^## |^```)[\s\S])*?```(sh|js)\n([\s\S]*?)```\n\n(?:prints[^\n]*\n\n)?```text\n([\s\S]*?)```/gm,
  ),
];

const work = workplace();
beforeAll(() => {
  renameSync(work.model, join(work.dir, "kimi-k3"));
  mkdirSync(join(work.dir, "bin"));
  // Little memory, because other tests run beside this one.
  const program = join(work.dir, "bin", "k3");
  writeFileSync(program, `#!/bin/sh\nexec '${process.execPath}' '${BIN}' "$@" --memory 400MB\n`);
  chmodSync(program, 0o755);
  mkdirSync(join(work.dir, "node_modules/@k3"), { recursive: true });
  symlinkSync(resolve(import.meta.dirname, "../../engine"), join(work.dir, "node_modules/@k3/engine"));
});

test("all examples are found", () => {
  expect(examples).toHaveLength(page.match(/^```(sh|js)$/gm)!.length);
  expect(examples.length).toBeGreaterThanOrEqual(5);
});

for (const [, name, language, code, expected] of examples) {
  test(name!, () => {
    const env = { ...process.env, PATH: `${join(work.dir, "bin")}${delimiter}${process.env["PATH"]}` };
    const [program, argv] = language === "sh" ? ["sh", ["-e"]] : [process.execPath, ["--input-type=module"]];
    const ran = spawnSync(program!, argv as string[], { cwd: work.dir, env, input: code, encoding: "utf8" });
    expect(ran.stderr).toBe("");
    expect(ran.status).toBe(0);
    if (language === "sh") expect(ran.stdout).toBe(expected);
    else expect(ran.stdout.endsWith(expected!)).toBe(true);
  });
}
