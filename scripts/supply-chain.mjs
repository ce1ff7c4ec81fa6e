// @ts-nocheck Plain JavaScript, as every script in this folder; the lab's tests import it.
// What others' code may do here, checked: every direct dependency has its line in docs/dependencies.md, workflows use pinned actions with
// least permissions, and the SBOM is that of the lockfile. `node scripts/supply-chain.mjs` prints complaints and ends with 1.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parse } from "yaml";
import { staleFiles } from "./sbom.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const KINDS = ["dependencies", "devDependencies", "optionalDependencies", "peerDependencies"];

/**
 * Complaints about the table of dependencies, whose rows are "| `name` | used by | why | what would replace it |".
 * @param {string} page text of docs/dependencies.md
 * @param {Record<string, any>[]} manifests every package.json of the workspace
 */
export function dependencyComplaints(page, manifests) {
  const listed = new Map();
  for (const [, name, rest] of page.matchAll(/^\| `([^`]+)`\s*\|(.*)\|$/gm)) {
    listed.set(
      name,
      rest.split("|").map((cell) => cell.trim()),
    );
  }
  const names = new Set(manifests.map((manifest) => manifest.name));
  const direct = new Set(
    manifests.flatMap((manifest) => KINDS.flatMap((kind) => Object.keys(manifest[kind] ?? {}))),
  );
  const complaints = [];
  for (const name of [...direct].filter((dependency) => !names.has(dependency)).sort()) {
    const cells = listed.get(name);
    if (!cells) complaints.push(`docs/dependencies.md: no line for ${name}`);
    else if (cells.length !== 3 || cells.some((cell) => cell === ""))
      complaints.push(`docs/dependencies.md: ${name} has an empty cell`);
  }
  for (const name of listed.keys()) {
    if (!direct.has(name)) complaints.push(`docs/dependencies.md: ${name} is no dependency any more`);
  }
  return complaints;
}

/** Permissions beyond reading that a job may have, by workflow and job. */
const GRANTED = { "release.yml": { release: ["contents", "pull-requests", "id-token"] } };

/**
 * Complaints about one workflow: actions not pinned to a commit, tokens with more than they need.
 * @param {string} file its name @param {string} text
 */
export function workflowComplaints(file, text) {
  const complaints = [];
  const workflow = parse(text);
  const events = typeof workflow.on === "string" ? [workflow.on] : Object.keys(workflow.on ?? {});
  if (events.includes("pull_request_target"))
    complaints.push(`${file}: pull_request_target runs others' code with our rights`);
  if (JSON.stringify(workflow.permissions) !== '{"contents":"read"}')
    complaints.push(`${file}: the top needs permissions: contents: read`);
  for (const [name, job] of Object.entries(workflow.jobs ?? {})) {
    for (const [scope, level] of Object.entries(job.permissions ?? {})) {
      if (level !== "read" && level !== "none" && !GRANTED[file]?.[name]?.includes(scope)) {
        complaints.push(`${file}: job ${name} may ${level} ${scope}`);
      }
    }
    if (typeof job.permissions === "string")
      complaints.push(`${file}: job ${name} has permissions ${job.permissions}`);
    if (typeof job["timeout-minutes"] !== "number")
      complaints.push(`${file}: job ${name} has no timeout-minutes`);
    for (const step of job.steps ?? []) {
      if (step.uses?.startsWith("actions/checkout@") && step.with?.["persist-credentials"] !== false) {
        complaints.push(`${file}: job ${name} leaves its token in the checkout (persist-credentials: false)`);
      }
      if (/\$\{\{\s*github\.(event|head_ref)/.test(step.run ?? "")) {
        complaints.push(`${file}: job ${name} pastes text of the event into a script`);
      }
      for (const command of (step.run ?? "").split(/\n|&&|;/)) {
        if (
          /\b(pnpm|npm) (i|install|add|ci)\b|\bnpx\b|\bpnpm dlx\b/.test(command) &&
          !/ --frozen-lockfile\b/.test(command)
        )
          complaints.push(`${file}: job ${name} installs what no lockfile names: ${command.trim()}`);
      }
    }
  }
  for (const [, action] of text.matchAll(/^\s*(?:- )?uses:\s*(.+)$/gm)) {
    if (!/^(\.\/|[\w.-]+\/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$)/.test(action)) {
      complaints.push(`${file}: ${action} is not pinned to a commit with its version behind it`);
    }
  }
  return complaints;
}

/** A workflow of this repository, parsed. @param {string} file its name */
export function readWorkflow(file) {
  return parse(readFileSync(join(root, ".github/workflows", file), "utf8"));
}

function manifestsOfWorkspace() {
  const folders = ["packages", "apps"].flatMap((group) =>
    readdirSync(join(root, group)).map((name) => join(root, group, name)),
  );
  return [root, ...folders]
    .map((folder) => join(folder, "package.json"))
    .filter((path) => existsSync(path))
    .map((path) => JSON.parse(readFileSync(path, "utf8")));
}

export function supplyChainComplaints() {
  const workflows = join(root, ".github/workflows");
  return [
    ...dependencyComplaints(readFileSync(join(root, "docs/dependencies.md"), "utf8"), manifestsOfWorkspace()),
    ...readdirSync(workflows).flatMap((file) =>
      workflowComplaints(file, readFileSync(join(workflows, file), "utf8")),
    ),
    ...staleFiles(),
  ];
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const complaints = supplyChainComplaints();
  for (const line of complaints) console.error(line);
  process.exitCode = complaints.length > 0 ? 1 : 0;
}
