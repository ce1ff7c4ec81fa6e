import { execFile, spawnSync } from "node:child_process";
import { cp, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { parse } from "@cdktf/hcl2json";

export const LAB = fileURLToPath(new URL("../..", import.meta.url));
export const PLAN = join(LAB, "modules/plan");

export const has = (command: string, ...args: string[]): boolean => spawnSync(command, args).status === 0;

/** Why the tests that need Terraform cannot run here; undefined where they can. */
export const noTerraform = has("terraform", "version") ? undefined : "terraform is not installed";

export type Hcl = any;

/** All *.tf files of a folder as one parsed configuration: blocks of one kind and name collected in lists. */
export async function parseFolder(folder: string): Promise<Hcl> {
  const merged: Hcl = {};
  for (const name of (await readdir(folder)).filter((file) => file.endsWith(".tf")).sort()) {
    merge(merged, await parse(name, await readFile(join(folder, name), "utf8")));
  }
  return merged;
}

function merge(into: Hcl, from: Hcl): void {
  for (const [key, value] of Object.entries(from)) {
    if (Array.isArray(value)) into[key] = [...(into[key] ?? []), ...value];
    else if (typeof value !== "object") into[key] = value;
    else {
      into[key] ??= {};
      merge(into[key], value);
    }
  }
}

export async function terraform(cwd: string, ...args: string[]): Promise<string> {
  const env: NodeJS.ProcessEnv = { ...process.env, CHECKPOINT_DISABLE: "1", TF_IN_AUTOMATION: "1" };
  delete env["TF_CLI_CONFIG_FILE"];
  const { stdout } = await promisify(execFile)("terraform", args, { cwd, env, maxBuffer: 1 << 26 });
  return stdout;
}

/** A copy of the plan module, initialised, so that nothing is written into the repository. */
export async function copyOfPlan(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "k3-lab-plan-"));
  await cp(PLAN, folder, { recursive: true, filter: (path) => !path.includes(".terraform") });
  await terraform(folder, "init", "-backend=false", "-input=false", "-no-color");
  return folder;
}

/** The start-up script as Terraform renders it from the root module's defaults and these changes. */
export async function renderStartup(changes: Record<string, unknown>): Promise<string> {
  const root = await parseFolder(LAB);
  const wanted = Object.keys((await parseFolder(PLAN)).variable);
  const values = Object.fromEntries(wanted.map((name) => [name, root.variable[name][0].default]));
  const folder = await copyOfPlan();
  try {
    await writeFile(
      join(folder, "test.auto.tfvars.json"),
      JSON.stringify({ ...values, project_id: "my-project-1", ...changes }),
    );
    await terraform(folder, "apply", "-auto-approve", "-input=false", "-no-color");
    return await terraform(folder, "output", "-raw", "startup_script");
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
