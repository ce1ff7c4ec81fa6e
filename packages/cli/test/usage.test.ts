import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { k3 } from "./harness.ts";

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "k3-usage-"));
});
afterAll(() => rm(dir, { recursive: true, force: true }));

const COMMANDS = [
  "plan",
  "doctor",
  "fetch",
  "verify",
  "pack",
  "run",
  "chat",
  "bench",
  "pipeline",
  "miniature",
  "hub",
  "clean",
];

describe("help and version", () => {
  it("lists every command of the design", async () => {
    const { code, stdout } = await k3(["--help"]);
    expect(code).toBe(0);
    for (const name of COMMANDS) expect(stdout).toContain(`k3 ${name}`);
  });

  it.each([
    ["plan", "--memory --disk --download --codec --threads --price-vm --price-disk"],
    ["doctor", "--probe-seconds"],
    [
      "fetch",
      "--revision --dir --concurrency --limit-rate --endpoint --cdn-host --include --exclude --first --repair --adopt-partials --switch-revision",
    ],
    [
      "verify",
      "--level --repo --revision --manifest --fail-on-extra --recheck --since-receipt --jobs --canary",
    ],
    ["pack", "--codec --check --threads --dry-run"],
    [
      "run",
      "--trunk --prompt --prompt-file --ids --generate --memory --threads --layers --chunk --temperature --top-p --min-p --repeat-penalty --seed --stop --ignore-eos --logprobs --state --dump-logits --trace-experts",
    ],
    ["chat", "--trunk --system --tools --thinking-effort --conversation --memory --temperature"],
    [
      "bench",
      "--trunk --runs --memory --threads --prompt --generate --cold --out --against --ids-pattern --seconds-pattern",
    ],
    ["pipeline", "--revision --dir --memory --prompt --generate --status"],
    ["hub", "--port"],
    ["clean", "--yes"],
  ])("k3 %s takes the flags of the design", async (name, flags) => {
    const { code, stdout } = await k3([name, "--help"]);
    expect(code).toBe(0);
    for (const flag of [...flags.split(" "), "--json", "--quiet", "--debug"]) expect(stdout).toContain(flag);
  });

  it.each([
    ["bench", ["model_dir"]],
    ["bench compare", ["a", "b"]],
    ["bench cache-sim", ["trace"]],
  ])("the help of k3 %s lists its own positionals only", async (name, wanted) => {
    const { stdout } = await k3([...name.split(" "), "--help"]);
    const section = /\nPositionals:\n([\s\S]*?)\n\n/.exec(stdout)![1]!;
    expect([...section.matchAll(/^ {2}(\w+)/gm)].map(([, positional]) => positional)).toEqual(wanted);
  });

  it("prints the version of the package", async () => {
    expect((await k3(["--version"])).stdout).toMatch(/^\d+\.\d+\.\d+\n$/);
  });
});

describe("unusable arguments end with exit code 2 before anything is done", () => {
  it.each([
    [[], "which command"],
    [["fly"], "fly"],
    [["run", "DIR", "--prompt", "x", "--fast"], "fast"],
    [["run"], "need at least 1"],
    [["run", "DIR", "--ids", "1,,2x"], "not a token id"],
    [["run", "DIR", "--ids", "1,-2"], "not a token id"],
    [["run", "DIR", "--ids", "1", "--prompt", "x"], "exclusive"],
    [["run", "DIR", "--prompt", "x", "--generate", "many"], "--generate: many is not a whole number"],
    [["run", "DIR", "--prompt", "x", "--layers", "0"], "at least 1"],
    [["run", "DIR", "--prompt", "x", "--memory", "lots"], "not a size"],
    [["run", "DIR", "--prompt", "x", "--memory", "8GB", "--memory", "9GB"], "more than once"],
    [["run", "DIR", "--prompt", "x", "--top-p", "1.5"], "at most 1"],
    [["run", "DIR", "--prompt", "x", "--seed", "1.5"], "whole number"],
    [["fetch", "a/b"], "dir"],
    [["fetch", "a/b", "--dir", "D", "--concurrency", "17"], "at most 16"],
    [["fetch", "a/b", "--dir", "D", "--limit-rate", "soon"], "not a rate"],
    [["pack", "A", "B", "--codec", "zip"], "zip"],
    [["verify", "D", "--level", "deep"], "deep"],
    [["verify", "D", "--repo", "a/b"], "belong together"],
    [["plan", "--memory", "-1"], "memory"],
    [["bench", "D", "--cold", "ice"], "ice"],
  ] as [string[], string][])("k3 %j", async (argv, message) => {
    const human = await k3(argv);
    expect([human.code, human.stdout]).toEqual([2, ""]);
    expect(human.stderr.toLowerCase()).toContain(message.toLowerCase());
    expect(human.stderr).not.toMatch(/at .*\.[jt]s:\d+/);
    const machine = await k3([...argv, "--json"]);
    expect(machine.code).toBe(2);
    expect(machine.json()).toHaveLength(1);
    expect(machine.result()).toMatchObject({
      type: "error",
      exit: 2,
      code: expect.stringMatching(/^E_/),
      message: expect.any(String),
    });
  });
});

describe("what is not there is named", () => {
  it("a model directory without a config", async () => {
    const { code, stderr } = await k3(["run", join(dir, "none"), "--ids", "1"]);
    expect(code).toBe(3);
    expect(stderr).toContain("config.json");
  });

  it("a config that is not Kimi K3's, with every fault at once", async () => {
    await writeFile(
      join(dir, "config.json"),
      JSON.stringify({ model_type: "llama", text_config: { hidden_size: 0 } }),
    );
    const { code, stderr } = await k3(["run", dir, "--ids", "1"]);
    expect(code).toBe(2);
    for (const field of ["hidden_size", "num_hidden_layers", "linear_attn_config"])
      expect(stderr).toContain(field);
  });

  it("the cause only with --debug", async () => {
    const { stderr } = await k3(["run", join(dir, "none"), "--ids", "1", "--debug"]);
    expect(stderr).toMatch(/at .*\.[jt]s/);
  });
});
