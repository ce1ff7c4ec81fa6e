import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { plan, RELEASED_PLAN_SOURCE } from "@k3/bench";
import { formatBytes, formatSeconds, parseRate, parseSize } from "@k3/stage";
import { serveDirectory } from "@k3/testkit";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { k3 } from "./harness.ts";

const REPOSITORY = resolve(import.meta.dirname, "../../..");
const docs = (name: string) => readFile(join(REPOSITORY, "docs", name), "utf8");
const COMMANDS = (await readdir(join(REPOSITORY, "docs/commands")))
  .filter((name) => name !== "README.md")
  .map((name) => name.replace(".md", ""));

/** Cells of the tables of a page whose first cell begins with one of these. */
function rows(text: string, first: RegExp): string[][] {
  return text
    .split("\n")
    .filter((line) => line.startsWith("|"))
    .map((line) =>
      line
        .slice(1, -1)
        .split("|")
        .map((cell) => cell.trim()),
    )
    .filter(([cell]) => first.test(cell!));
}

const unquoted = (cell: string) => cell.replace(/^`(.*)`$/, "$1");

describe("the page of each command", () => {
  it("there is one for each that the help lists", async () => {
    const { stdout } = await k3(["--help"]);
    const listed = [...stdout.matchAll(/^ {2}k3 ([a-z]+)/gm)].map(([, name]) => name!);
    expect(COMMANDS.sort()).toEqual(listed.sort());
  });

  it.each(COMMANDS)("%s has the flags and defaults of its help", async (name) => {
    const { stdout } = await k3([name, "--help"]);
    const options = stdout
      .slice(stdout.indexOf("\nOptions:"))
      .split(/\n(?= {2}--)/)
      .slice(1);
    const common = ["help", "version", "json", "quiet", "debug"];
    const inHelp = options
      .map((text) => {
        const flag = /--([a-z-]+)/.exec(text)![1]!;
        return [flag, /\[default: "?(.*?)"?\]/.exec(text.replace(/\n\s*/g, " "))?.[1] ?? ""];
      })
      .filter(([flag]) => !common.includes(flag!));
    const inPage = rows(await docs(`commands/${name}.md`), /^`--/).map(([flag, ...cells]) => [
      unquoted(flag!).slice(2),
      cells.length > 1 ? unquoted(cells[0]!) : "",
    ]);
    expect(inPage.sort()).toEqual(inHelp.sort());
  });
});

describe("the results of the commands", { timeout: 300_000 }, () => {
  let dir: string;
  let hub: Awaited<ReturnType<typeof serveDirectory>>;
  const results: Record<string, Record<string, unknown>[]> = {};
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), "k3-facts-"));
    const at = (name: string) => join(dir, name);
    const add = async (name: string, argv: string[], stdin = "") => {
      const outcome = await k3([...argv, "--json"], stdin);
      const result = outcome.result();
      expect({ argv, type: result["type"], message: result["message"] }).toMatchObject({
        argv,
        type: "result",
      });
      results[name] = [...(results[name] ?? []), result];
    };
    await add("miniature", ["miniature", at("model")]);
    hub = await serveDirectory(at("model"));
    const prompt = ["--prompt", "The capital of France is"];
    const trunk = ["--trunk", at("trunk")];
    await add("plan", ["plan", "--memory", "16GB", "--disk", "240MB/s"]);
    await add("fetch", ["fetch", hub.repo, "--dir", at("copy"), "--endpoint", hub.endpoint]);
    await add("verify", ["verify", at("copy"), "--canary"]);
    await add("pack", ["pack", at("copy"), at("trunk"), "--dry-run"]);
    await add("pack", ["pack", at("copy"), at("trunk")]);
    await add("run", ["run", at("copy"), ...trunk, ...prompt, "--logprobs", "1"]);
    await add("chat", ["chat", at("copy"), ...trunk, "--no-think"], "Hello!\n");
    await add("bench", [
      "bench",
      at("copy"),
      ...trunk,
      "--runs",
      "1",
      "--cold",
      "none",
      "--out",
      at("bench"),
    ]);
    await add("doctor", ["doctor", at("copy"), "--probe-seconds", "0.1"]);
    await add("pipeline", ["pipeline", "--dir", at("work")]);
    await add("pipeline", ["pipeline", "--dir", at("work"), "--status"]);
    await add("clean", ["clean", at("copy")]);
  }, 300_000);
  afterAll(async () => {
    await hub?.close();
    await rm(dir, { recursive: true, force: true });
  });

  it.each(COMMANDS.filter((name) => name !== "hub"))("%s has the fields of its page", async (name) => {
    const page = await docs(`commands/${name}.md`);
    const section = page.slice(page.indexOf("\n## Result\n")).split(/\n## (?!Result)/)[0]!;
    const documented = rows(section, /^`[a-z_]/).flatMap(([cell]) =>
      [...cell!.matchAll(/`([a-z_]+)`/g)].map(([, field]) => field!),
    );
    if (name === "pipeline") documented.push("finished", "next");
    const found = new Set(results[name]!.flatMap((result) => Object.keys(result)));
    found.delete("type");
    found.delete("command");
    expect([...new Set(documented)].sort()).toEqual([...found].sort());
  });
});

describe("troubleshooting", async () => {
  const sources: string[] = [];
  for (const part of await readdir(join(REPOSITORY, "packages"))) {
    for (const folder of ["src", "native"]) {
      const root = join(REPOSITORY, "packages", part, folder);
      const names = await readdir(root, { recursive: true }).catch(() => []);
      for (const name of names)
        if (/\.(ts|cc|h)$/.test(name)) sources.push(await readFile(join(root, name), "utf8"));
    }
  }
  const page = await docs("troubleshooting.md");
  const messages = [...page.matchAll(/^### (.*)$/gm)].flatMap(([, heading]) =>
    [...heading!.matchAll(/`([^`]+)`/g)].map(([, message]) => message!),
  );

  it("has messages", () => expect(messages.length).toBeGreaterThan(40));

  it.each(messages)("%s is a message of the sources", (message) => {
    const parts = message.split("…").filter((part) => part.trim() !== "");
    const inOne = sources.some((source) => parts.every((part) => source.includes(part)));
    expect(inOne).toBe(true);
  });
});

describe("what a budget buys", () => {
  it("is what plan predicts now", async () => {
    const page = await docs("budget.md");
    const [, threads, ...rates] = /^<!-- budget-table: (\d+) threads, (\S+), (\S+) -->$/m.exec(page)!;
    const table = rows(page, /^\d+ GB$/);
    expect(table.map(([memory]) => memory)).toEqual(["4 GB", "8 GB", "16 GB", "32 GB", "64 GB", "128 GB"]);
    for (const row of table) {
      const plans = [];
      for (const rate of rates) {
        const setting = { memory: parseSize(row[0]!.replace(" ", "")), diskBytesPerSecond: parseRate(rate) };
        const common = {
          source: RELEASED_PLAN_SOURCE,
          threads: Number(threads),
          downloadBytesPerSecond: 125e6,
        };
        plans.push(await plan({ ...common, ...setting }));
      }
      const { split, read_bytes_per_token } = plans[0]!;
      const bytes = [split.pinned_trunk_bytes, split.expert_cache_bytes, read_bytes_per_token].map(
        formatBytes,
      );
      const seconds = plans.map(({ token_seconds }) => formatSeconds(token_seconds));
      expect(row).toEqual([row[0], ...bytes, ...seconds]);
    }
  });
});
