// Commands of the pages that are no line of k3 in a fenced block (docs.test.ts runs those). They take minutes, a network or another shell,
// so they are not run here; but the scripts, files, tests and packages that they name have to exist.
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { describe, expect, it } from "vitest";

const REPOSITORY = resolve(import.meta.dirname, "../../..");
const read = (path: string) => readFileSync(join(REPOSITORY, path), "utf8");
const manifest = (path: string) =>
  JSON.parse(read(join(path, "package.json"))) as {
    version: string;
    scripts?: Record<string, string>;
    bin?: Record<string, string>;
    dependencies?: Record<string, string>;
  };
const packages = readdirSync(join(REPOSITORY, "packages"));
const bins = new Map(
  packages.flatMap((name) =>
    Object.keys(manifest(join("packages", name)).bin ?? {}).map((bin) => [bin, name]),
  ),
);
const pages = [
  ...["README.md", "CONTRIBUTING.md", "SECURITY.md"],
  ...readdirSync(join(REPOSITORY, "docs"), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".md"))
    .map((name) => join("docs", name)),
  ...packages.map((name) => join("packages", name, "README.md")),
];

/** Lines of indented blocks and code within text that call a program of ours or a package manager; without comments. */
function commandsOf(page: string): string[] {
  const text = read(page).replace(/^ *```(?:js|ts|json|text|cpp|cmake|)\n[\s\S]*?^ *```$/gm, "");
  const blocks = [...text.matchAll(/^ {4,}(\S.*)$/gm)].map(([, line]) => line!);
  const spans = [...text.matchAll(/`([^`\n]+)`/g)].map(([, code]) => code!);
  const starts = /^(?:[A-Z][A-Z0-9_]*=\S+ )*(corepack|k3-[a-z-]+|node|npm|npx|pnpm) [\w.@-]/;
  return [...new Set([...blocks, ...spans])]
    .map((line) => line.replace(/\s+#.*$/, "").trim())
    .filter((line) => starts.test(line));
}

/** Why a command is not what it should be; undefined where it is. */
function fault(command: string, page = "README.md"): string | undefined {
  /** A README of a package may speak from its own folder. */
  const exists = (path: string) =>
    existsSync(join(REPOSITORY, path)) || existsSync(join(REPOSITORY, page, "..", path));
  const words = command
    .split(" && ")[0]!
    .split(/\s+/)
    .filter((word) => !/^[A-Z][A-Z0-9_]*=/.test(word));
  const at = words[0] === "npx" && words[1] === "--yes" ? 2 : words[0] === "npx" ? 1 : 0;
  if (/^pnpm@/.test(words[at] ?? "")) {
    const { packageManager } = manifest("") as { packageManager?: string };
    if (words[at] !== packageManager) return `${words[at]} is not the workspace's ${packageManager}`;
    words[at] = "pnpm";
  }
  const [program, first, ...rest] = words.slice(at);
  switch (program) {
    case "node":
      return exists(first!) ? undefined : `${first} does not exist`;
    case "pnpm": {
      if (
        first === undefined ||
        first === "..." ||
        ["add", "dlx", "install", "list", "--recursive"].includes(first)
      ) {
        const name = rest.find((word) => word.startsWith("@k3/"));
        return name === undefined || packages.includes(name.slice(4)) ? undefined : `no package ${name}`;
      }
      if (first === "turbo") {
        const task = rest[1]!;
        const { tasks } = JSON.parse(read("turbo.json")) as { tasks: Record<string, unknown> };
        const filter = /--filter=@k3\/(\S+)/.exec(command)?.[1];
        if (filter !== undefined && !packages.includes(filter)) return `no package ${filter}`;
        return task in tasks ? undefined : `turbo has no task ${task}`;
      }
      return first in (manifest("").scripts ?? {}) ? undefined : `no script ${first}`;
    }
    case "vitest": {
      const after = (flag: string) => (rest.includes(flag) ? rest[rest.indexOf(flag) + 1]! : undefined);
      const project = after("--project");
      const folder = after("--root") ?? (project ? join("packages", project) : join(page, ".."));
      if (!existsSync(join(REPOSITORY, folder, "test"))) return `${folder} has no tests`;
      const flag = rest.findLastIndex((word) => word.startsWith("--"));
      const filter = rest[flag < 0 ? 0 : flag + 2];
      const tests = readdirSync(join(REPOSITORY, folder, "test"), { recursive: true, encoding: "utf8" });
      return filter === undefined || tests.some((name) => join("test", name).includes(filter))
        ? undefined
        : `no test ${filter} in ${folder}`;
    }
    case "corepack":
      return first === "enable" ? undefined : "unknown";
    case "npm":
      return first === "install" ? undefined : "unknown";
    case "k3":
      return undefined;
    default:
      return bins.has(program ?? "") ? undefined : `${program} is no command of ours`;
  }
}

describe("commands beside those that are run call what exists", () => {
  it.each(pages.filter((page) => commandsOf(page).length > 0))("%s", (page) => {
    const faults = commandsOf(page).flatMap((command) => {
      const found = fault(command, page);
      return found === undefined ? [] : [`${command}: ${found}`];
    });
    expect(faults).toEqual([]);
  });

  it("the quickstart's k3 is the one of the checkout", () => {
    const [alias] = /^alias k3=.*$/m.exec(read("docs/quickstart.md"))!;
    const script = `shopt -s expand_aliases\n${alias}\ncd /\nk3 --version`;
    const version = execFileSync("bash", ["-c", script], { cwd: REPOSITORY, encoding: "utf8" });
    expect(version).toBe(`${manifest("packages/cli").version}\n`);
  });

  it.each([
    ["pnpm nothing", "no script nothing"],
    ["pnpm turbo run test --filter=@k3/nothing", "no package nothing"],
    ["pnpm turbo run nothing", "turbo has no task nothing"],
    ["npx --yes pnpm@10.0.0 test", "is not the workspace's"],
    ["node scripts/nothing.mjs", "does not exist"],
    ["npx vitest run --root packages/pack test/nothing", "no test test/nothing"],
    ["npx vitest run test/nothing.test.ts", "has no tests"],
    ["npx k3-nothing", "is no command of ours"],
    ["pnpm dlx @k3/nothing MODEL_DIR", "no package @k3/nothing"],
  ])("%s would be noticed", (command, message) => {
    expect(fault(command)).toContain(message);
  });
});
