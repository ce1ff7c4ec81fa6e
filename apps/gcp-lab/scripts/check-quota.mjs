#!/usr/bin/env node
// Says before `terraform apply` what the project, the region or the zone lacks.
//   node scripts/check-quota.mjs --project-id my-project --print-commands | bash
//   node scripts/check-quota.mjs --tfvars terraform.tfvars
// Exit 0: nothing is missing; 2: usage; 3: an answer is not gcloud's; 5: something is missing.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { checkQuota } from "./quota.mjs";
import { Refusal, readJson, runMain, settingsFrom } from "./settings.mjs";

const string = /** @type {const} */ ({ type: "string" });
const boolean = /** @type {const} */ ({ type: "boolean" });

const HELP = `check-quota [--tfvars FILE] [--dir DIR = quota] [--json]
check-quota --project-id ID [--tfvars FILE] [--dir DIR = quota] --print-commands | bash

Settings that matter: --zone --machine-type --spot --image --boot-disk-type --boot-disk-gb --data-disk-type --data-disk-gb
--local-ssd-count --outbound; without a flag they come from the tfvars file, then from variables.tf.
`;

/** @param {string} word */
const quote = (word) => `'${word.replaceAll("'", "'\\''")}'`;

/** @param {import("./settings.mjs").Settings} settings @param {string} project @param {string} dir */
function commands(settings, project, dir) {
  const zone = String(settings["zone"]);
  const [, imageProject, image] =
    /^projects\/([^/]+)\/global\/images\/([^/]+)$/.exec(String(settings["image"])) ?? [];
  if (!imageProject || !image)
    throw new Refusal(2, `image ${settings["image"]} is not projects/P/global/images/NAME`);
  /** @param {string} what @param {string} file */
  const line = (what, file) => `gcloud compute ${what} --format=json > ${quote(join(dir, file))}`;
  const of = `--project=${quote(project)}`;
  return [
    `mkdir -p ${quote(dir)}`,
    line(`project-info describe ${of}`, "project.json"),
    line(`regions describe ${quote(zone.slice(0, zone.lastIndexOf("-")))} ${of}`, "region.json"),
    line(`machine-types list ${of} --zones=${quote(zone)}`, "machine-types.json"),
    line(`disk-types list ${of} --zones=${quote(zone)}`, "disk-types.json"),
    line(`images describe ${quote(image)} --project=${quote(imageProject)}`, "image.json"),
  ].join("\n");
}

runMain(() => {
  const { values } = parseArgs({
    options: {
      help: boolean,
      json: boolean,
      "print-commands": boolean,
      dir: { type: "string", default: "quota" },
      tfvars: string,
      "project-id": string,
      zone: string,
      "machine-type": string,
      spot: boolean,
      image: string,
      "boot-disk-type": string,
      "boot-disk-gb": string,
      "data-disk-type": string,
      "data-disk-gb": string,
      "local-ssd-count": string,
      outbound: string,
    },
  });
  if (values.help) {
    process.stdout.write(HELP);
    return 0;
  }
  const settings = settingsFrom(values);
  const dir = values.dir;
  if (values["print-commands"]) {
    const project = values["project-id"] ?? settings["project_id"];
    if (typeof project !== "string")
      throw new Refusal(2, "--print-commands needs --project-id or a tfvars file with project_id");
    process.stdout.write(`${commands(settings, project, dir)}\n`);
    return 0;
  }
  if (!existsSync(dir))
    throw new Refusal(
      2,
      `${dir} does not exist; fill it with: check-quota --project-id ID --print-commands | bash`,
    );
  const image = join(dir, "image.json");
  const findings = checkQuota(settings, {
    project: readJson(join(dir, "project.json")),
    region: readJson(join(dir, "region.json")),
    machineTypes: readJson(join(dir, "machine-types.json")),
    diskTypes: readJson(join(dir, "disk-types.json")),
    ...(existsSync(image) ? { image: readJson(image) } : {}),
  });
  const missing = findings.filter((finding) => finding.verdict === "missing");
  if (values.json) process.stdout.write(`${JSON.stringify({ ok: missing.length === 0, findings })}\n`);
  else {
    for (const { what, need, limit, usage, verdict, hint } of findings) {
      const numbers =
        limit === undefined ? `needs ${need}` : `needs ${need}, free ${limit - (usage ?? 0)} of ${limit}`;
      process.stdout.write(`${verdict.padEnd(8)} ${what}: ${numbers}${hint ? `; ${hint}` : ""}\n`);
    }
    const unknown = findings.filter((finding) => finding.verdict === "unknown").length;
    process.stdout.write(
      `${missing.length === 0 ? "Nothing is missing" : `${missing.length} missing`}${unknown > 0 ? `, ${unknown} could not be told` : ""}.\n`,
    );
  }
  return missing.length === 0 ? 0 : 5;
});
