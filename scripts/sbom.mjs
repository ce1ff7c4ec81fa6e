// @ts-nocheck Plain JavaScript, as every script in this folder; the lab's tests import it.
// What a user of the published packages installs besides them: docs/sbom.json (CycloneDX 1.6) and THIRD-PARTY-NOTICES.md, from the
// lockfile and the installed packages. `node scripts/sbom.mjs` writes both, `--check` says whether they are up to date.
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parse } from "yaml";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");

/** The package URL of an npm package, https://github.com/package-url/purl-spec. */
const purl = (name, version) => `pkg:npm/${name.replace("@", "%40")}@${version}`;

/** `@scope/name@1.2.3(peer@4)` as it stands in a lockfile, taken apart. */
function takeApart(key) {
  const bare = key.replace(/\(.*$/, "");
  const at = bare.lastIndexOf("@");
  return { name: bare.slice(0, at), version: bare.slice(at + 1) };
}

/**
 * The run-time dependencies of some workspace packages, and theirs in turn.
 * @param lock a parsed pnpm-lock.yaml of version 9
 * @param manifests package.json of each published workspace package by its directory in the lockfile ("packages/fetch")
 * @returns {{ components: Map<string, { name, version, integrity }>, edges: Map<string, Set<string>> }} keyed by purl
 */
export function closure(lock, manifests) {
  if (!String(lock.lockfileVersion).startsWith("9."))
    throw new Error(`lockfile version ${lock.lockfileVersion} is not 9`);
  const components = new Map();
  const edges = new Map();
  const own = new Map(
    Object.entries(manifests).map(([dir, manifest]) => [dir, purl(manifest.name, manifest.version)]),
  );

  function visit(key) {
    const { name, version } = takeApart(key);
    const id = purl(name, version);
    if (components.has(id)) return id;
    const entry = lock.packages[`${name}@${version}`];
    const integrity = entry?.resolution?.integrity;
    if (!integrity) throw new Error(`${key} has no integrity in the lockfile`);
    components.set(id, { name, version, integrity });
    const snapshot = lock.snapshots[key] ?? {};
    const children = Object.entries({ ...snapshot.dependencies, ...snapshot.optionalDependencies });
    edges.set(id, new Set(children.map(([child, at]) => visit(`${child}@${at}`))));
    return id;
  }

  for (const [dir, id] of own) {
    const { dependencies = {}, optionalDependencies = {} } = lock.importers[dir] ?? {};
    const found = new Set();
    for (const [name, { version }] of Object.entries({ ...dependencies, ...optionalDependencies })) {
      if (!version.startsWith("link:")) found.add(visit(`${name}@${version}`));
      else {
        const linked = own.get(join(dir, version.slice("link:".length)));
        if (linked) found.add(linked);
      }
    }
    edges.set(id, found);
  }
  return { components, edges };
}

/** Manifest and licence text of an installed package of pnpm's store layout. */
function installed({ name, version }) {
  const store = join(root, "node_modules/.pnpm");
  const prefix = `${name.replace("/", "+")}@${version}`;
  const folder = readdirSync(store).find((entry) => entry === prefix || entry.startsWith(`${prefix}_`));
  if (!folder) throw new Error(`${name}@${version} is not installed; run pnpm install`);
  const home = join(store, folder, "node_modules", name);
  const file = readdirSync(home)
    .sort()
    .find((entry) => /^(licen[cs]e|copying)/i.test(entry));
  return {
    manifest: JSON.parse(readFileSync(join(home, "package.json"), "utf8")),
    text: file ? readFileSync(join(home, file), "utf8").replaceAll("\r\n", "\n").trim() : undefined,
  };
}

function publishedManifests() {
  const found = {};
  for (const name of readdirSync(join(root, "packages")).sort()) {
    const path = join(root, "packages", name, "package.json");
    if (!existsSync(path)) continue;
    const manifest = JSON.parse(readFileSync(path, "utf8"));
    if (!manifest.private) found[`packages/${name}`] = manifest;
  }
  return found;
}

const byKey = ([a], [b]) => (a < b ? -1 : 1);

/** A CycloneDX 1.6 document, https://cyclonedx.org/docs/1.6/json/. No clock and no random serial: the same lockfile, the same bytes. */
function bom(manifests, { components, edges }, details) {
  const ours = Object.values(manifests).map((manifest) => ({
    type: "library",
    "bom-ref": purl(manifest.name, manifest.version),
    name: manifest.name,
    version: manifest.version,
    licenses: [{ license: { id: manifest.license } }],
    purl: purl(manifest.name, manifest.version),
  }));
  const theirs = [...components].sort(byKey).map(([id, { name, version, integrity }]) => {
    const [algorithm, value] = integrity.split("-");
    return {
      type: "library",
      "bom-ref": id,
      name,
      version,
      hashes: [
        { alg: algorithm.replace("sha", "SHA-"), content: Buffer.from(value, "base64").toString("hex") },
      ],
      licenses: [{ license: { id: details.get(id).manifest.license } }],
      purl: id,
    };
  });
  return {
    bomFormat: "CycloneDX",
    specVersion: "1.6",
    version: 1,
    metadata: {
      component: {
        type: "application",
        "bom-ref": "k3",
        name: "k3",
        licenses: [{ license: { id: "Apache-2.0" } }],
      },
    },
    components: [...ours, ...theirs],
    dependencies: [
      { ref: "k3", dependsOn: ours.map((component) => component["bom-ref"]) },
      ...[...edges].sort(byKey).map(([ref, on]) => ({ ref, dependsOn: [...on].sort() })),
    ],
  };
}

function notices({ components }, details) {
  const parts = [
    "# Third-party notices",
    "k3 is under the Apache License 2.0 (LICENSE). Its packages install the following packages of others, unchanged, from the npm registry; none of their code is in this repository. Written by `node scripts/sbom.mjs`.",
  ];
  for (const [id, { name, version }] of [...components].sort(byKey)) {
    const { manifest, text } = details.get(id);
    const source = typeof manifest.repository === "string" ? manifest.repository : manifest.repository?.url;
    const where = source?.replace(/^git\+/, "").replace(/\.git$/, "");
    parts.push(`## ${name} ${version}`, `${manifest.license}${where ? `, ${where}` : ""}`);
    const body = text ?? "The package contains no text of its licence.";
    parts.push(`\`\`\`text\n${body.replaceAll("```", "'''")}\n\`\`\``);
  }
  return `${parts.join("\n\n")}\n`;
}

/** What the two files have to be, by their paths in the repository. */
export function wanted() {
  const manifests = publishedManifests();
  const tree = closure(parse(readFileSync(join(root, "pnpm-lock.yaml"), "utf8")), manifests);
  const details = new Map([...tree.components].map(([id, component]) => [id, installed(component)]));
  return {
    "docs/sbom.json": `${JSON.stringify(bom(manifests, tree, details), null, 2)}\n`,
    "THIRD-PARTY-NOTICES.md": notices(tree, details),
  };
}

/** One line for each file that is not what it has to be. */
export function staleFiles() {
  return Object.entries(wanted())
    .filter(
      ([path, text]) => !existsSync(join(root, path)) || readFileSync(join(root, path), "utf8") !== text,
    )
    .map(([path]) => `${path} is out of date; run node scripts/sbom.mjs`);
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  if (process.argv.includes("--check")) {
    const stale = staleFiles();
    for (const line of stale) console.error(line);
    process.exitCode = stale.length > 0 ? 1 : 0;
  } else {
    for (const [path, text] of Object.entries(wanted())) writeFileSync(join(root, path), text);
  }
}
