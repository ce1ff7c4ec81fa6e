import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeAll, describe, expect, it } from "vitest";
import { unitOf } from "./support/systemd.ts";
import { has, noTerraform, PLAN, renderStartup } from "./support/terraform.ts";

const bootstrap = join(PLAN, "bootstrap");
const noShellcheck = has("shellcheck", "--version") ? undefined : "shellcheck is not installed";
const noSystemd = has("systemd-analyze", "--version") ? undefined : "systemd-analyze is not installed";
const title = (name: string, why: string | undefined) => `${name}${why ? ` (skipped: ${why})` : ""}`;

describe.skipIf(noShellcheck)(title("shellcheck", noShellcheck), () => {
  it.each(readdirSync(bootstrap))("finds nothing in %s", (file) => {
    const { stdout, status } = spawnSync("shellcheck", [join(bootstrap, file)], { encoding: "utf8" });
    expect(stdout).toBe("");
    expect(status).toBe(0);
  });
});

describe.skipIf(noTerraform)(title("rendered", noTerraform), () => {
  let script: string;
  beforeAll(async () => {
    script = await renderStartup({ prompt: "it's $(x) `y`" });
  });

  it("is a script that bash can read", () => {
    expect(spawnSync("bash", ["-n"], { input: script, encoding: "utf8" })).toMatchObject({
      status: 0,
      stderr: "",
    });
  });

  it.skipIf(noShellcheck)(
    title("is clean as a whole, with what its files set for each other", noShellcheck),
    () => {
      // 2016: the dollar sign in this prompt is meant to stay one.
      const { stdout } = spawnSync("shellcheck", ["--shell=bash", "--exclude=SC2016", "-"], {
        input: script,
        encoding: "utf8",
      });
      expect(stdout).toBe("");
    },
  );

  it.skipIf(noSystemd)(title("installs a unit that systemd understands", noSystemd), () => {
    const folder = mkdtempSync(join(tmpdir(), "k3-lab-unit-"));
    try {
      // Only paths that exist on this machine, so that what is left to complain about is the unit itself.
      const text = unitOf(script)
        .replace(/^ExecStart=.*/m, "ExecStart=/bin/true")
        .replace(/^(User|Group)=.*/gm, "$1=root");
      writeFileSync(join(folder, "k3-pipeline.service"), text);
      const { stderr } = spawnSync("systemd-analyze", ["verify", join(folder, "k3-pipeline.service")], {
        encoding: "utf8",
      });
      const version = Number(
        /^systemd (\d+)/.exec(execFileSync("systemd-analyze", ["--version"], { encoding: "utf8" }))![1],
      );
      const complaints = stderr
        .split("\n")
        .filter((line) => line.includes("k3-pipeline.service"))
        // Known since systemd 254; the pinned image has 255.
        .filter((line) => version >= 254 || !/RestartSteps|RestartMaxDelaySec/.test(line));
      expect(complaints).toEqual([]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
