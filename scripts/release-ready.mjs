// What only the owners of the repository can fill in, checked before a release does anything else: npm's provenance binds a
// package to the repository that its manifest names, and refuses another.
//   node scripts/release-ready.mjs                        complaints, and exit 1, when a manifest does not name $GITHUB_REPOSITORY
//   node scripts/release-ready.mjs --write OWNER/NAME     writes the field into every published manifest
// Nothing has to be installed for it.
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const SLUG = /^[\w.-]+\/[\w.-]+$/;

/** @param {string} root @returns {{ folder: string, path: string, manifest: any }[]} */
function published(root) {
  return readdirSync(join(root, "packages"))
    .map((folder) => ({ folder, path: join(root, "packages", folder, "package.json") }))
    .filter(({ path }) => existsSync(path))
    .map((entry) => ({ ...entry, manifest: JSON.parse(readFileSync(entry.path, "utf8")) }))
    .filter(({ manifest }) => !manifest.private);
}

/** @param {string} repository OWNER/NAME @param {string} folder below packages/ */
const fieldFor = (repository, folder) => ({
  type: "git",
  url: `git+https://github.com/${repository}.git`,
  directory: `packages/${folder}`,
});

/**
 * @param {string} root of the workspace
 * @param {string | undefined} repository OWNER/NAME that is about to publish; undefined: any that all agree upon
 */
export function readinessComplaints(root, repository) {
  const packages = published(root);
  const complaints = [];
  const wanted = repository ?? /github\.com\/(.+)\.git$/.exec(packages[0]?.manifest.repository?.url)?.[1];
  for (const { folder, manifest } of packages) {
    const field = JSON.stringify(manifest.repository);
    if (field === undefined) complaints.push(`packages/${folder}/package.json has no field "repository"`);
    else if (field !== JSON.stringify(fieldFor(wanted ?? "", folder)))
      complaints.push(
        `packages/${folder}/package.json names ${field}, not ${JSON.stringify(fieldFor(wanted ?? "OWNER/NAME", folder))}`,
      );
  }
  if (complaints.length > 0)
    complaints.push(
      `npm would refuse the provenance of these packages. Run: node scripts/release-ready.mjs --write ${repository ?? "OWNER/NAME"}, and commit what it writes.`,
    );
  return complaints;
}

/** @param {string} root @param {string} repository OWNER/NAME */
export function writeRepository(root, repository) {
  for (const { folder, path, manifest } of published(root)) {
    const { repository: _, ...rest } = manifest;
    // Behind the licence, where npm's own tools put it.
    const entries = Object.entries(rest);
    const at = entries.findIndex(([key]) => key === "license") + 1;
    entries.splice(at, 0, ["repository", fieldFor(repository, folder)]);
    writeFileSync(path, `${JSON.stringify(Object.fromEntries(entries), null, 2)}\n`);
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const root = resolve(fileURLToPath(import.meta.url), "../..");
  const [flag, repository] = process.argv.slice(2);
  if (flag === undefined) {
    const complaints = readinessComplaints(root, process.env.GITHUB_REPOSITORY);
    for (const line of complaints) console.error(line);
    process.exitCode = complaints.length > 0 ? 1 : 0;
  } else if (flag === "--write" && repository !== undefined && SLUG.test(repository)) {
    writeRepository(root, repository);
  } else {
    console.error("usage: release-ready.mjs [--write OWNER/NAME]");
    process.exitCode = 2;
  }
}
