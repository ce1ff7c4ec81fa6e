#!/usr/bin/env node
// The cost sheet: what the lab costs per hour, per run, and when it is off.
//   node scripts/cost-sheet.mjs                                     the lab as variables.tf has it
//   node scripts/cost-sheet.mjs --tfvars terraform.tfvars --plan plan.json   with the hours of `k3 plan --json > plan.json`
//   node scripts/cost-sheet.mjs --readme                            writes the README's table;  --check only compares
// Exit 0: done; 1: the README's table is not what this script writes; 2: usage; 3: a file is not what it should be.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { checkPrices, costSheet, hoursOfPlan, README_ROWS } from "./cost.mjs";
import { LAB, Refusal, readJson, readText, runMain, settingsFrom } from "./settings.mjs";

const BEGIN = "<!-- cost sheet: written by scripts/cost-sheet.mjs --readme -->";
const END = "<!-- end of cost sheet -->";
const string = /** @type {const} */ ({ type: "string" });
const boolean = /** @type {const} */ ({ type: "boolean" });

/** @param {string} sheet @param {boolean} write */
function readme(sheet, write) {
  const path = join(LAB, "README.md");
  const text = readFileSync(path, "utf8");
  const [begin, end] = [text.indexOf(BEGIN), text.indexOf(END)];
  if (begin < 0 || end < begin) throw new Refusal(3, `README.md has lost the markers ${BEGIN} and ${END}`);
  const wanted = `${text.slice(0, begin)}${BEGIN}\n${sheet}\n${text.slice(end)}`;
  if (wanted === text) return 0;
  if (write) writeFileSync(path, wanted);
  else
    process.stderr.write(
      "README.md: the cost sheet is not what its price file gives; run scripts/cost-sheet.mjs --readme\n",
    );
  return write ? 0 : 1;
}

runMain(() => {
  const { values } = parseArgs({
    options: {
      readme: boolean,
      check: boolean,
      prices: { type: "string", default: join(LAB, "prices/2025-us-central1.json") },
      hours: string,
      plan: string,
      tfvars: string,
      "machine-type": string,
      spot: boolean,
      "boot-disk-type": string,
      "boot-disk-gb": string,
      "data-disk-type": string,
      "data-disk-gb": string,
      "local-ssd-count": string,
      generate: string,
    },
  });
  const prices = checkPrices(readJson(values.prices));
  if (values.readme || values.check) {
    const defaults = settingsFrom({});
    return readme(
      costSheet(
        README_ROWS.map((row) => ({ ...defaults, ...row })),
        prices,
      ),
      values.readme === true,
    );
  }
  if (values.hours !== undefined && values.plan !== undefined)
    throw new Refusal(2, "give --hours or --plan, not both");
  const settings = settingsFrom(values);
  let hours;
  if (values.plan !== undefined) hours = hoursOfPlan(readText(values.plan), Number(settings["generate"]));
  if (values.hours !== undefined) {
    hours = Number(values.hours);
    if (!(hours > 0)) throw new Refusal(2, `--hours ${values.hours}: a number of hours is needed`);
  }
  process.stdout.write(`${costSheet([settings], prices, hours)}\n`);
  return 0;
});
