// The direction of imports, as the design draws it: a package may import only those named here, and a stage never
// another stage. Read from the sources, so that an import without a declared dependency is found too.
import { readdirSync, readFileSync } from "node:fs";
import { resolve } from "node:path";

const MAY_IMPORT = {
  stage: [],
  checkpoint: ["stage"],
  trunk: ["stage"],
  hub: ["stage"],
  fetch: ["stage", "hub"],
  verify: ["stage", "checkpoint", "hub"],
  pack: ["stage", "checkpoint", "trunk"],
  engine: ["stage", "checkpoint", "trunk"],
  bench: ["stage", "checkpoint", "engine"],
  testkit: ["stage", "checkpoint"],
  cli: ["stage", "checkpoint", "trunk", "fetch", "verify", "pack", "engine", "bench", "testkit"],
};

/** One line for each import in `packages/NAME/src` that points the wrong way, and for each undeclared one. */
export function wrongImports(packages) {
  const faults = [];
  for (const { name, dir, manifest } of packages) {
    const allowed = MAY_IMPORT[name];
    if (!allowed) {
      if (!manifest.publishConfig?.os)
        faults.push(`packages/${name} has no place in scripts/import-direction.mjs`);
      continue;
    }
    for (const file of sources(resolve(dir, "src"))) {
      for (const [, target] of readFileSync(file, "utf8").matchAll(
        /(?:from|import)\s*\(?\s*"@k3\/([a-z-]+)/g,
      )) {
        if (target === name || allowed.includes(target)) {
          if (target !== name && !manifest.dependencies?.[`@k3/${target}`]) {
            faults.push(
              `${file} imports @k3/${target}, which packages/${name}/package.json does not declare`,
            );
          }
        } else
          faults.push(
            `${file} imports @k3/${target}; @k3/${name} may import only: ${allowed.join(", ") || "nothing"}`,
          );
      }
    }
  }
  return faults;
}

function sources(dir) {
  return readdirSync(dir, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(".ts"))
    .map((entry) => resolve(entry.parentPath ?? entry.path, entry.name));
}
