import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { checkPrices, costOf, estimateHours, hoursOfPlan } from "../scripts/cost.mjs";
import { readDefaults, readTfvars } from "../scripts/settings.mjs";
import { LAB, parseFolder } from "./support/terraform.ts";

const folder = mkdtempSync(join(tmpdir(), "k3-lab-cost-"));
afterAll(() => rmSync(folder, { recursive: true }));
const file = (name: string, text: string): string => {
  writeFileSync(join(folder, name), text);
  return join(folder, name);
};
const sheet = (...args: string[]) =>
  spawnSync(process.execPath, [join(LAB, "scripts/cost-sheet.mjs"), ...args], { encoding: "utf8" });
const published = () =>
  checkPrices(JSON.parse(readFileSync(join(LAB, "prices/2025-us-central1.json"), "utf8")));
const defaults = () => readDefaults(readFileSync(join(LAB, "variables.tf"), "utf8"));

describe("settings", () => {
  it("are read from variables.tf as a real HCL parser reads them", async () => {
    const parsed = (await parseFolder(LAB)).variable;
    const scalars = Object.fromEntries(
      Object.keys(parsed)
        .map((name) => [name, parsed[name][0].default])
        .filter(([, value]) => value !== undefined && typeof value !== "object"),
    );
    expect(defaults()).toEqual(scalars);
  });

  it("are changed by a tfvars file, comments aside", () => {
    const text =
      'project_id = "p-1"  # mine\n#spot = true\nspot=false\ndata_disk_gb   = 2500\nlabels = { a = "b" }\n';
    expect(readTfvars(text)).toEqual({ project_id: "p-1", spot: false, data_disk_gb: 2500 });
  });
});

describe("prices", () => {
  it("are the story's, with their year", () => {
    const prices = published();
    expect(prices.as_of).toBe("2025");
    expect(prices.machine_hour["e2-standard-4"]).toEqual({ standard: 0.134, spot: 0.04 });
    expect(prices.disk_gib_month).toEqual({ "pd-standard": 0.04, "pd-balanced": 0.1, "pd-ssd": 0.17 });
    expect(prices.snapshot_gib_month).toBe(0.05);
    expect(prices.local_ssd_gib_month).toBe(0.08);
  });

  it("that are missing are named", () => {
    expect(() => checkPrices({ as_of: "2026", region: "x", currency: "EUR", hours_per_month: 730 })).toThrow(
      "no price local_ssd_gib_month",
    );
    expect(() => costOf({ ...defaults(), machine_type: "n2-standard-8" }, published())).toThrow(
      "no price for n2-standard-8 (standard)",
    );
  });
});

describe("costs", () => {
  // By hand: 2000 x 0.04 + 50 x 0.1 = 85 a month; 85 / 730 = 0.11644 an hour; with the machine and its address 0.25544.
  it("of the default machine, by hand", () => {
    const cost = costOf(defaults(), published(), 10);
    expect(cost.offPerMonth).toBeCloseTo(85, 10);
    expect(cost.offPerDay).toBeCloseTo(2.79452, 4);
    expect(cost.perHour.externalIp).toBeCloseTo(0.134 + 0.116438 + 0.005, 5);
    expect(cost.perRun.externalIp).toBeCloseTo(2.55438, 4);
    // 1.56e12 / 2^30 = 1452.86 GiB at 0.045 = 65.379; and ten hours of the NAT's own 0.0014.
    expect(cost.perRun.nat).toBeCloseTo(2.55438 + 0.014 + 65.3788, 3);
  });

  it("of Spot and of local SSD, by hand", () => {
    const spot = costOf({ ...defaults(), spot: true, local_ssd_count: 2 }, published(), 1);
    // Two of 375 GiB at 0.08 a month are 60 a month, 0.0822 an hour; and nothing of them when the machine is off.
    expect(spot.perHour.externalIp).toBeCloseTo(0.04 + 0.116438 + 0.0821918 + 0.005, 5);
    expect(spot.offPerMonth).toBeCloseTo(85, 10);
  });

  it("hours at a disk of 240 MB/s, by hand", () => {
    // 15,600 s to fetch at 100 MB/s, 6,500 to verify, 774.2 to pack, 3,000 for eight tokens of 90 GB.
    expect(estimateHours(240e6, 8)).toBeCloseTo((15600 + 6500 + 774.208 + 3000) / 3600, 4);
  });

  it("hours of a plan: the stages, the first token, and the others", () => {
    const plan = {
      type: "result",
      command: "plan",
      stages: { fetch: { seconds: 3600 }, verify: { seconds: 1800 }, pack: { seconds: 600 } },
      first_token_seconds: 900,
      token_seconds: 100,
    };
    const text = `{"type":"progress"}\n${JSON.stringify(plan)}\n`;
    expect(hoursOfPlan(text, 8)).toBeCloseTo((3600 + 1800 + 600 + 900 + 700) / 3600, 10);
    expect(() => hoursOfPlan('{"stages":{}}', 8)).toThrow("no stages.*.seconds");
    const shown = sheet("--plan", file("plan.json", text));
    expect(shown.status).toBe(0);
    expect(shown.stdout).toMatch(/\| +2\.1 \|/);
  });
});

describe("cost-sheet", () => {
  it("wrote the README's table", () => {
    expect(sheet("--check")).toMatchObject({ status: 0, stderr: "" });
  });

  it("notices when the table is not what a price file gives", () => {
    const other = file("other.json", JSON.stringify({ ...published(), snapshot_gib_month: 9 }));
    const { status, stderr } = sheet("--check", "--prices", other);
    expect(status).toBe(1);
    expect(stderr).toContain("run scripts/cost-sheet.mjs --readme");
  });

  it.each([
    [["--hours", "soon"], 2, "a number of hours"],
    [["--hours", "1", "--plan", "x"], 2, "not both"],
    [["--prices", "/nowhere"], 2, "cannot be read"],
    [["--data-disk-gb", "many"], 2, "a number is needed"],
    [["--data-disk-type", "hyperdisk-balanced"], 3, "no price for hyperdisk-balanced"],
    [["--colour"], 2, "--colour"],
  ])("%j is exit %i", (args, status, message) => {
    const run = sheet(...args);
    expect(run.stderr).toContain(message);
    expect(run.status).toBe(status);
  });
});
