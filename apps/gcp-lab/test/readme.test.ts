// The commands of the README: those that need no Google are run, gcloud being a stand-in; of the others the names are checked.
import { spawnSync } from "node:child_process";
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { estimateHours, hoursOfPlan } from "../scripts/cost.mjs";
import { enough } from "./support/gcloud.ts";
import { K3 } from "./support/k3.ts";
import { type Hcl, LAB, PLAN, parseFolder } from "./support/terraform.ts";

const page = readFileSync(join(LAB, "README.md"), "utf8");

/** Lines of code blocks, and code within text that begins like a command; without comments. */
function commandsOf(whole: string): string[] {
  const text = whole.replace(/^ *```.*$/gm, "");
  const blocks = [...text.matchAll(/^ {3,}(\S.*)$/gm)].map(([, line]) => line!);
  const spans = [...text.matchAll(/`([^`\n]+)`/g)].map(([, code]) => code!);
  const starts = /^(cd|cp|eval|gcloud|git|k3|node|npx|sudo|terraform) /;
  return [...new Set([...blocks, ...spans])]
    .map((line) => line.replace(/\s+#.*$/, "").replace(/\s+/g, " "))
    .filter((line) => starts.test(line));
}
const commands = commandsOf(page);

/** What this file runs, in a folder with the lab's scripts. */
const RUN = [
  "cp terraform.tfvars.example terraform.tfvars",
  "gcloud services enable compute.googleapis.com --project=YOUR_PROJECT",
  "node scripts/check-quota.mjs --tfvars terraform.tfvars --print-commands | bash",
  "node scripts/check-quota.mjs --tfvars terraform.tfvars",
  "k3 plan --json > plan.json && node scripts/cost-sheet.mjs --tfvars terraform.tfvars --plan plan.json",
];

/** What other tests run, and where. */
const ELSEWHERE: Record<string, string> = {
  "sudo k3-token --clear": "token.test.ts",
  "sudo google_metadata_script_runner startup": "bootstrap.test.ts",
  "sudo systemctl start k3-pipeline": "systemd.test.ts",
  "k3 pipeline": "systemd.test.ts",
  "k3 doctor": "bootstrap.test.ts",
  "k3 pipeline --status --dir /mnt/k3-data/k3": "systemd.test.ts",
  "k3 plan --memory 16GB --disk 240MB/s --download 800Mbit --threads 4": "readme.test.ts",
  "cd ../.. && npx vitest run --project gcp-lab": "readme.test.ts",
  "terraform test": "terraform.test.ts",
  "terraform validate": "../../release/test/workflows.test.ts",
};

/** What only Google can answer. */
const GOOGLE = [
  /^git clone <this repository> && cd k3\/apps\/gcp-lab$/,
  /^gcloud auth login && gcloud auth application-default login$/,
  /^gcloud compute (ssh|scp|instances start|disks delete|disks create|snapshots list)\b/,
  /^(eval "\$\()?terraform (init|apply|destroy|output -raw \w+|state rm|import)\b/,
];

describe("the commands of the README", () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), "k3-lab-readme-"));
    for (const name of ["scripts", "prices", "variables.tf", "terraform.tfvars.example"])
      cpSync(join(LAB, name), join(folder, name), { recursive: true });
    mkdirSync(join(folder, "answers"));
    for (const [name, answer] of Object.entries(enough()))
      writeFileSync(join(folder, "answers", `${name}.json`), JSON.stringify(answer));
    const program = (name: string, body: string) => {
      mkdirSync(join(folder, "bin"), { recursive: true });
      writeFileSync(join(folder, "bin", name), `#!/bin/bash\n${body}\n`);
      chmodSync(join(folder, "bin", name), 0o755);
    };
    program("k3", `exec '${process.execPath}' '${K3}' "$@"`);
    program(
      "gcloud",
      `echo "$*" >>'${folder}/asked'
case "$1 $2 $3" in
  "services enable compute.googleapis.com") ;;
  "compute project-info describe") cat '${folder}/answers/project.json' ;;
  "compute regions describe") cat '${folder}/answers/region.json' ;;
  "compute machine-types list") cat '${folder}/answers/machine-types.json' ;;
  "compute disk-types list") cat '${folder}/answers/disk-types.json' ;;
  "compute images describe") cat '${folder}/answers/image.json' ;;
  *) echo "ERROR: (gcloud) Invalid choice" >&2; exit 2 ;;
esac`,
    );
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  it("are all known here: run, run elsewhere, or Google's", () => {
    expect(commands.length).toBeGreaterThan(20);
    const unknown = commands.filter(
      (line) => !RUN.includes(line) && !(line in ELSEWHERE) && !GOOGLE.some((pattern) => pattern.test(line)),
    );
    expect(unknown).toEqual([]);
    for (const line of [...RUN, ...Object.keys(ELSEWHERE)]) expect(commands).toContain(line);
    for (const file of Object.values(ELSEWHERE)) expect(existsSync(join(LAB, "test", file)), file).toBe(true);
  });

  it("copy the settings, ask for the quotas, and make a cost sheet from a plan", () => {
    for (const line of RUN) {
      const { status, stderr } = spawnSync("bash", ["-c", `set -o pipefail; ${line}`], {
        cwd: folder,
        encoding: "utf8",
        env: { ...process.env, PATH: `${join(folder, "bin")}${delimiter}${process.env["PATH"]}` },
      });
      expect({ line, status, stderr: status ? stderr : "" }).toEqual({ line, status: 0, stderr: "" });
    }
    const asked = readFileSync(join(folder, "asked"), "utf8").trim().split("\n");
    expect(asked).toHaveLength(6);
    for (const line of asked.slice(1))
      expect(line).toMatch(/ --project=\S+ .*--format=json$|--project=\S+ --format=json$/);
  });

  it("name resources, disks and labels that the configuration makes", async () => {
    const root = await parseFolder(LAB);
    const [{ names, labels }] = [(await parseFolder(PLAN)).locals.find((block: Hcl) => block.names)];
    const prefix = root.variable.name[0].default;
    const made = Object.values<string>(names).map((name) => name.replace(/\$\{?var\.name\}?/, prefix));
    for (const [name] of page.matchAll(/\bk3-lab(?:-[a-z]+)?\b/g)) expect(made).toContain(name);
    for (const [, type, name] of page.matchAll(/\b(google_\w+)\.(\w+)/g))
      expect(root.resource[type!], `${type}.${name}`).toHaveProperty(name!);
    const [, key, value] = /by the label `(\w+):(\w+)`/.exec(page)!;
    expect(labels).toMatch(new RegExp(`\\b${key} += "${value}"`));
    expect(page).toContain(`--zone=${root.variable.zone[0].default}`);
  });

  it("of the teardown lift the protection of the data disk before they destroy, and delete it last", () => {
    const steps = commandsOf(page.slice(page.indexOf("## Teardown"), page.indexOf("## Moving")));
    const at = (pattern: RegExp) => {
      const index = steps.findIndex((line) => pattern.test(line));
      expect(index, String(pattern)).toBeGreaterThanOrEqual(0);
      return index;
    };
    const order = [
      /^terraform state rm google_compute_disk\.data$/,
      /^terraform destroy$/,
      /^gcloud compute disks delete k3-lab-data --zone=\S+ --project=\S+$/,
      /^gcloud compute snapshots list /,
    ].map(at);
    expect(order).toEqual([...order].sort((a, b) => a - b));
  });
});

it("the hours of the cost sheet are those of k3 plan for that machine, to two in a hundred", () => {
  const [, flags] = /`k3 plan (--memory 16GB [^`]*)`/.exec(page)!;
  const { stdout } = spawnSync(process.execPath, [K3, "plan", ...flags!.split(" "), "--json"], {
    encoding: "utf8",
  });
  const planned = hoursOfPlan(stdout, 8);
  expect(Math.abs(estimateHours(240e6, 8) / planned - 1)).toBeLessThan(0.02);
});
