#!/usr/bin/env node
// Part of `pnpm release:version`: the lab installs the version of @k3/cli that is about to be released.
//   node apps/gcp-lab/scripts/pin-k3.mjs [VARIABLES_TF]
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { LAB, Refusal, runMain } from "./settings.mjs";

runMain(() => {
  const path = process.argv[2] ?? join(LAB, "variables.tf");
  const { version } = JSON.parse(readFileSync(join(LAB, "../../packages/cli/package.json"), "utf8"));
  const text = readFileSync(path, "utf8");
  const pattern = /(variable "k3_version" \{[^}]*\n {2}default\s+= )"[^"]*"/;
  if (!pattern.test(text)) throw new Refusal(3, `${path}: no default of k3_version`);
  writeFileSync(path, text.replace(pattern, `$1"${version}"`));
  return 0;
});
