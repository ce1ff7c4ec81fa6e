import { mkdtemp, readdir, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, relative, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { mask, missingLines, readPage } from "./docs-page.ts";
import { DocsBench } from "./docs-runner.ts";

const REPOSITORY = resolve(import.meta.dirname, "../../..");
const pages = [
  "README.md",
  ...(await readdir(join(REPOSITORY, "docs"), { recursive: true }))
    .filter((name) => name.endsWith(".md"))
    .sort()
    .map((name) => join("docs", name)),
];
/** Pages whose blocks are scripts of more than k3, run as such by a test of their own. */
const TESTED_BY: Record<string, string> = { "docs/chat.md": "packages/cli/test/chat-docs.test.ts" };
const withCommands: string[] = [];
for (const page of pages) {
  if (page in TESTED_BY) continue;
  const steps = await readPage(join(REPOSITORY, page));
  if (steps.some(({ kind }) => kind === "block")) withCommands.push(page);
}

let bench: DocsBench;
let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "k3-docs-"));
  bench = await DocsBench.open(root);
}, 300_000);
afterAll(async () => {
  await bench?.close();
  await rm(root, { recursive: true, force: true });
});

/** `doctor` judges the machine that it runs on, which need not have 1.64 TB. */
const exitsOf = (command: string, wanted: number) => (/\bk3 doctor\b/.test(command) ? [0, 5] : [wanted]);

describe("every command of the documentation does what the page says", { timeout: 600_000 }, () => {
  it("there are pages with commands", () => {
    expect(withCommands).toContain("README.md");
    expect(withCommands.length).toBeGreaterThan(10);
  });

  it.each(Object.entries(TESTED_BY))("%s is run by %s", async (page, test) => {
    expect(await readFile(join(REPOSITORY, test), "utf8")).toContain(page);
  });

  it.each(withCommands)("%s", async (page) => {
    const dir = await mkdtemp(join(root, "page-"));
    const serving: (() => Promise<number | null>)[] = [];
    let exit = 0;
    let interruptAt: string | undefined;
    try {
      for (const step of await readPage(join(REPOSITORY, page))) {
        if (step.kind === "directive") {
          const [what, ...rest] = step.words;
          if (what === "exit") exit = Number(rest[0]);
          else if (what === "interrupt") interruptAt = rest.join(" ");
          else await bench.prepare(dir, step.words);
          continue;
        }
        let [stdout, stderr] = ["", ""];
        for (const [index, shown] of step.commands.entries()) {
          const command = bench.here(shown);
          const where = `${page}:${step.line}: ${command}`;
          if (/^k3 hub /.test(command)) {
            serving.push(await bench.serve(command, dir));
            continue;
          }
          const last = index === step.commands.length - 1;
          const { code, ...printed } = await bench.run(command, dir, last ? interruptAt : undefined);
          const text = printed.stdout + printed.stderr;
          stdout += printed.stdout;
          stderr += printed.stderr;
          const wanted = exitsOf(command, last ? exit : 0);
          expect({ where, ok: wanted.includes(code!), code, text }).toEqual({ where, ok: true, code, text });
        }
        const missing = missingLines(
          (step.expected ?? []).map((line) => bench.here(line)),
          [stdout, stderr],
        );
        expect({
          page,
          line: step.line,
          missing,
          printed: missing.length ? (stdout + stderr).split("\n").map(mask) : [],
        }).toEqual({
          page,
          line: step.line,
          missing: [],
          printed: [],
        });
        [exit, interruptAt] = [0, undefined];
      }
    } finally {
      for (const stop of serving) expect(await stop()).toBe(0);
      await rm(dir, { recursive: true, force: true });
    }
  });
});

describe("links", () => {
  it.each(pages)("%s leads to files that exist", async (page) => {
    const text = (await readFile(join(REPOSITORY, page), "utf8")).replace(/^```[\s\S]*?^```$/gm, "");
    const dead: string[] = [];
    for (const [, target] of text.matchAll(/\]\(([^)\s#]+)(?:#[^)]*)?\)/g)) {
      if (/^[a-z]+:/.test(target!)) continue;
      const path = resolve(REPOSITORY, page, "..", target!);
      if (!(await stat(path).catch(() => undefined))) dead.push(relative(REPOSITORY, path));
    }
    expect(dead).toEqual([]);
  });
});
