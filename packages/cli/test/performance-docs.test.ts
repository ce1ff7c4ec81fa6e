import { execFile } from "node:child_process";
import { readdir, readFile, stat } from "node:fs/promises";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { describe, expect, it } from "vitest";
import { k3 } from "./harness.ts";

const REPOSITORY = resolve(import.meta.dirname, "../../..");
const PAGES = ["docs/performance.md", "docs/performance-kernels.md"];
const execute = promisify(execFile);
const read = (path: string) => readFile(join(REPOSITORY, path), "utf8");

/** The words of each command of a page's indented blocks; comments, settings of the environment and `> FILE` left out. */
function commandsOf(page: string): string[][] {
  return page
    .split("\n")
    .filter((line) => /^ {4}\S/.test(line))
    .map((line) =>
      line
        .replace(/(^|\s)#.*$/, "")
        .replace(/>\s*\S+/, "")
        .trim()
        .split(/\s+/),
    )
    .map((words) => words.slice(words.findIndex((word) => !/^[A-Z_0-9]+=/.test(word))));
}

const flagsOf = (words: readonly string[]) =>
  words.filter((word) => word.startsWith("--")).map((word) => word.split("=")[0]!);

/** What a command understands of flags, in words; throws when there is no such command. */
async function helpOf([program, ...words]: readonly string[]): Promise<string> {
  if (program === "k3") {
    const sub =
      words[1] !== undefined && /^[a-z]+-[a-z]+$/.test(words[1]) ? words.slice(0, 2) : words.slice(0, 1);
    const { code, stdout } = await k3([...sub, "--help"]);
    expect(code).toBe(0);
    return stdout;
  }
  if (program === "node") {
    expect((await stat(join(REPOSITORY, words[0]!))).isFile()).toBe(true);
    return (await execute(process.execPath, [join(REPOSITORY, words[0]!), "--help"])).stdout;
  }
  // A Python script may need NumPy to start, and its source names every option.
  if (program === "python3") return read(words[0]!);
  if (program === "pnpm") {
    const scripts = (JSON.parse(await read("package.json")) as { scripts: Record<string, string> }).scripts;
    expect(Object.keys(scripts)).toContain(words[0]);
    return helpOf(scripts[words[0]!]!.split("&&").at(-1)!.trim().split(" "));
  }
  throw new Error(`no such program is known here: ${program}`);
}

describe.each(PAGES)("%s", async (path) => {
  const page = await read(path);

  it.each(commandsOf(page).map((words) => [words.join(" "), words] as const))(
    "%s can be run: the script is there and takes these flags",
    async (_, words) => {
      const inner = words.indexOf("--");
      const outer = inner < 0 ? words : words.slice(0, inner);
      const help = await helpOf(outer);
      for (const flag of flagsOf(outer)) expect(help).toMatch(new RegExp(`${flag}(?![a-z-])`));
      if (inner >= 0) {
        const rest = words.slice(inner + 1);
        const helpOfRest = await helpOf(rest);
        for (const flag of flagsOf(rest)) expect(helpOfRest).toMatch(new RegExp(`${flag}(?![a-z-])`));
      }
    },
  );

  it("every table stands in a section with a command", () => {
    for (const section of page.split(/^## /m)) {
      if (/^\| ?-+/m.test(section)) expect(commandsOf(section), section.slice(0, 60)).not.toEqual([]);
    }
  });
});

describe("the benchmarks of the packages", async () => {
  const scripts: string[] = [];
  for (const name of await readdir(join(REPOSITORY, "packages"))) {
    const files = await readdir(join(REPOSITORY, "packages", name, "bench")).catch(() => []);
    scripts.push(...files.map((file) => `packages/${name}/bench/${file}`));
  }
  const runnable: string[] = [];
  for (const script of scripts) {
    // Parts of others are imported or given JSON, and print no usage.
    if (/\.py$/.test(script) || (/\.mjs$/.test(script) && /--help|\bhelp: \{/.test(await read(script))))
      runnable.push(script);
  }

  it("each that can be run by hand is named in a page of the documentation", async () => {
    expect(runnable.length).toBeGreaterThan(8);
    const pages = [...PAGES, "docs/tokenizer-and-chat.md", "package.json"];
    const text = (await Promise.all(pages.map(read))).join("\n");
    expect(runnable.filter((script) => !text.includes(script))).toEqual([]);
  });
});
