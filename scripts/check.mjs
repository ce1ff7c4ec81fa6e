// Everything about the source that needs no run of it: formatting, lint, types, unused code, the direction of imports,
// and what would be published. `node scripts/check.mjs [NAME...]` runs all checks or those named.
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { wrongImports } from "./import-direction.mjs";
import { packed } from "./packed.mjs";
import { supplyChainComplaints } from "./supply-chain.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const workspaces = (group) =>
  readdirSync(resolve(root, group))
    .map((name) => ({ name, dir: resolve(root, group, name) }))
    .filter(({ dir }) => existsSync(resolve(dir, "package.json")))
    .map((entry) => ({
      ...entry,
      manifest: JSON.parse(readFileSync(resolve(entry.dir, "package.json"), "utf8")),
    }));
const packages = workspaces("packages");
const apps = workspaces("apps");
const hasTests = ({ dir }) => existsSync(resolve(dir, "tsconfig.test.json"));

function run(command, args, cwd = root) {
  const result = spawnSync(resolve(root, "node_modules/.bin", command), args, {
    cwd,
    encoding: "utf8",
    maxBuffer: 1 << 26,
  });
  return result.status === 0
    ? ""
    : `${command} ${args.join(" ")}\n${result.stdout ?? ""}${result.stderr ?? ""}`;
}

const everywhere = (list, check) => list.map(check).filter(Boolean).join("\n");

const checks = {
  build: () => run("turbo", ["run", "build", "--output-logs=errors-only"]),
  biome: () => run("biome", ["ci", "--colors=off", "."]),
  "clang-format": () => {
    const result = spawnSync(process.execPath, [resolve(root, "scripts/clang-format.mjs")], {
      encoding: "utf8",
    });
    if (result.stdout.includes("skipped")) process.stdout.write(result.stdout);
    return result.status === 0 ? "" : `${result.stdout}${result.stderr}`;
  },
  imports: () => wrongImports(packages).join("\n"),
  types: () =>
    everywhere([...packages, ...apps].filter(hasTests), ({ dir }) =>
      run("tsc", ["-p", "tsconfig.test.json"], dir),
    ),
  knip: () => run("knip", ["--no-config-hints"]),
  "supply-chain": () => supplyChainComplaints().join("\n"),
  api: async () => (await import("./api-reports.mjs")).apiComplaints().join("\n"),
  publint: () =>
    everywhere(packed(root), ({ unpacked }) => run("publint", ["--pack", "false", "--strict", unpacked])),
  exports: () =>
    everywhere(
      packed(root).filter(({ name }) => !name.includes("-linux-")),
      ({ tarball }) =>
        run("attw", [
          tarball,
          "--profile",
          "esm-only",
          "--no-color",
          "--exclude-entrypoints",
          "build-native",
        ]),
    ),
};

const wanted = process.argv.slice(2);
let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  if (wanted.length > 0 && !wanted.includes(name)) continue;
  const started = Date.now();
  const complaint = await check();
  console.log(`${complaint ? "FAILED" : "ok    "} ${name} (${((Date.now() - started) / 1000).toFixed(1)} s)`);
  if (complaint) {
    failed++;
    console.log(complaint);
  }
}
process.exit(failed ? 1 : 0);
