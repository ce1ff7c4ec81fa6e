import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { enough, quota } from "./support/gcloud.ts";
import { LAB } from "./support/terraform.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "k3-lab-quota-"));
});
afterEach(() => rmSync(dir, { recursive: true }));

function check(answers: Record<string, unknown>, ...flags: string[]) {
  for (const [name, answer] of Object.entries(answers)) {
    writeFileSync(join(dir, `${name}.json`), typeof answer === "string" ? answer : JSON.stringify(answer));
  }
  return run("--dir", dir, ...flags);
}
const run = (...flags: string[]) =>
  spawnSync(process.execPath, [join(LAB, "scripts/check-quota.mjs"), ...flags], { encoding: "utf8" });
const missing = (output: string) => output.split("\n").filter((line) => line.startsWith("missing "));

describe("check-quota", () => {
  it("finds nothing missing where everything is there", () => {
    const { status, stdout } = check(enough());
    expect(missing(stdout)).toEqual([]);
    expect(stdout).toContain("enough   DISKS_TOTAL_GB (us-central1): needs 2000, free 3996 of 4096\n");
    expect(stdout).toContain("enough   SSD_TOTAL_GB (us-central1): needs 50, free 400 of 500\n");
    expect(stdout).toContain("Nothing is missing.\n");
    expect(status).toBe(0);
  });

  it("the blog's trap: an SSD quota too small for 2 TB", () => {
    const { status, stdout } = check(enough(), "--data-disk-type", "pd-balanced");
    expect(missing(stdout)).toEqual([
      "missing  SSD_TOTAL_GB (us-central1): needs 2050, free 400 of 500; ask for 2150 in IAM & Admin > Quotas, or choose differently",
    ]);
    expect(status).toBe(5);
  });

  it("what is used already counts", () => {
    const answers = enough();
    answers.region.quotas = answers.region.quotas.map((entry) =>
      entry.metric === "CPUS" ? quota("CPUS", 24, 21) : entry,
    );
    const { status, stdout } = check(answers);
    expect(missing(stdout)).toHaveLength(1);
    expect(stdout).toContain("CPUS (us-central1): needs 4, free 3 of 24");
    expect(status).toBe(5);
  });

  it("families with a quota of their own, and local SSD", () => {
    expect(check(enough(), "--machine-type", "n2-standard-8", "--local-ssd-count", "16").stdout).toMatch(
      /enough {3}N2_CPUS \(us-central1\): needs 8, free 8 of 8\n[\s\S]*enough {3}LOCAL_SSD_TOTAL_GB \(us-central1\): needs 6000, free 6000 of 6000\n/,
    );
    const more = check(enough(), "--machine-type", "n2-standard-8", "--local-ssd-count", "24");
    expect(missing(more.stdout)).toHaveLength(1);
    expect(more.status).toBe(5);
  });

  it("Spot uses its own quota if there is one, else the ordinary one", () => {
    expect(check(enough(), "--spot").stdout).toContain("enough   CPUS (us-central1)");
    const answers = enough();
    answers.region.quotas.push(quota("PREEMPTIBLE_CPUS", 2));
    const { status, stdout } = check(answers, "--spot");
    expect(missing(stdout)[0]).toMatch(/^missing {2}PREEMPTIBLE_CPUS \(us-central1\): needs 4, free 2 of 2/);
    expect(status).toBe(5);
  });

  it("a machine or disk type that the zone does not offer", () => {
    const machine = check(enough(), "--machine-type", "c3-standard-8");
    expect(missing(machine.stdout)[0]).toContain(
      "c3-standard-8 in us-central1-a: needs 1, free 0 of 0; the zone does not offer it",
    );
    expect(machine.status).toBe(5);
    const disk = check(enough(), "--data-disk-type", "pd-ssd");
    expect(missing(disk.stdout).join("\n")).toContain("the zone does not offer this disk type");
  });

  it("the other trap: a disk smaller than checkpoint and trunk together", () => {
    const { status, stdout } = check(enough(), "--data-disk-gb", "1500");
    // (1.56e12 + 77e9 + 20e9) / 2^30 = 1543.2 GiB
    expect(missing(stdout)[0]).toMatch(
      /GiB for checkpoint, trunk and work on the data disk: needs 1544, free 1485 of 1485; raise data_disk_gb to 1560/,
    );
    expect(status).toBe(5);
  });

  it("a NAT needs a router", () => {
    const answers = enough();
    answers.project.quotas = answers.project.quotas.filter((entry) => entry.metric !== "ROUTERS");
    answers.project.quotas.push(quota("ROUTERS", 1, 1));
    expect(check(answers).status).toBe(0);
    const { status, stdout } = check(answers, "--outbound", "nat");
    expect(missing(stdout)[0]).toContain("ROUTERS (project)");
    expect(status).toBe(5);
  });

  it("an image that is gone, and one that is old", () => {
    const gone = check({ ...enough(), image: { ...enough().image, deprecated: { state: "OBSOLETE" } } });
    expect(missing(gone.stdout)[0]).toContain("image ubuntu-2404-noble-amd64-v20251205");
    expect(gone.status).toBe(5);
    const old = check({ ...enough(), image: { ...enough().image, deprecated: { state: "DEPRECATED" } } });
    expect(old.stdout).toContain("deprecated: works, but a newer build exists");
    expect(old.status).toBe(0);
  });

  it("what gcloud does not list is said to be unknown, not enough", () => {
    const answers = enough();
    answers.region.quotas = answers.region.quotas.filter((entry) => entry.metric !== "IN_USE_ADDRESSES");
    const { status, stdout } = check(answers);
    expect(stdout).toContain("unknown  IN_USE_ADDRESSES (us-central1): needs 1; gcloud does not list it");
    expect(stdout).toContain("Nothing is missing, 1 could not be told.\n");
    expect(status).toBe(0);
  });

  it("takes settings from a tfvars file, and flags over it", () => {
    writeFileSync(join(dir, "x.tfvars"), 'project_id = "my-project-1"\nmachine_type = "n2-standard-8"\n');
    const tfvars = ["--tfvars", join(dir, "x.tfvars")];
    expect(check(enough(), ...tfvars).stdout).toContain("N2_CPUS");
    expect(check(enough(), ...tfvars, "--machine-type", "e2-standard-4").stdout).not.toContain("N2_CPUS");
  });

  it("answers in JSON", () => {
    const answer = JSON.parse(check(enough(), "--data-disk-type", "pd-balanced", "--json").stdout);
    expect(answer.ok).toBe(false);
    expect(answer.findings).toContainEqual(
      expect.objectContaining({
        what: "SSD_TOTAL_GB (us-central1)",
        need: 2050,
        limit: 500,
        usage: 100,
        verdict: "missing",
      }),
    );
  });

  it.each([
    ["not JSON", { region: "ERROR: (gcloud) not found" }, "region.json is not JSON"],
    ["no quotas", { region: { name: "us-central1" } }, 'region.json: no list "quotas"'],
    [
      "limits as text",
      { project: { quotas: [{ metric: "CPUS", limit: "8", usage: 0 }] } },
      "is not {metric, limit, usage}",
    ],
    [
      "no list of machine types",
      { "machine-types": { name: "e2-standard-4" } },
      "machine-types.json: not a list",
    ],
    ["another region", { region: { name: "europe-west4", quotas: [] } }, "region.json is about europe-west4"],
  ])("exit 3: %s", (_name, change, message) => {
    const { status, stderr } = check({ ...enough(), ...change });
    expect(stderr).toContain(message);
    expect(status).toBe(3);
  });

  it("exit 2: usage", () => {
    expect(run("--dir", join(dir, "nowhere")).status).toBe(2);
    expect(run("--frobnicate").status).toBe(2);
    expect(run("--print-commands").stderr).toContain("needs --project-id");
  });

  it("prints the gcloud commands, quoted", () => {
    const { stdout, status } = run("--project-id", "my-project-1", "--dir", "a b", "--print-commands");
    expect(status).toBe(0);
    expect(stdout.split("\n").filter((line) => line.startsWith("gcloud compute "))).toHaveLength(5);
    expect(stdout).toContain(
      "regions describe 'us-central1' --project='my-project-1' --format=json > 'a b/region.json'",
    );
  });
});
