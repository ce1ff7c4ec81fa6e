// Fills and empties a platform package (packages/engine-linux-x64-gnu and its like) around `pnpm pack`, run in its folder:
// `copy` takes the binary that `pnpm build` has made, `remove` takes it away again, so that no stale binary stays in the
// workspace for the loader to find. `floor`, run from the root before a release, refuses binaries that need a newer
// system than the packages promise.
import { copyFileSync, existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const packages = resolve(dirname(fileURLToPath(import.meta.url)), "../packages");
const suffix = "-linux-x64-gnu";

/** What the oldest promised system has: Ubuntu 22.04. */
const FLOOR = { GLIBC: "2.35", GLIBCXX: "3.4.30", CXXABI: "1.3.13" };

function places(dir) {
  const { name, main } = JSON.parse(readFileSync(join(dir, "package.json"), "utf8"));
  const owner = basename(dir).slice(0, -suffix.length);
  return { name, built: join(packages, owner, "build/Release", main), packed: join(dir, main) };
}

/** Orders dotted numbers. */
function newer(a, b) {
  const [left, right] = [a, b].map((version) => version.split(".").map(Number));
  const at = left.findIndex((part, index) => part !== (right[index] ?? 0));
  return at >= 0 && left[at] > (right[at] ?? 0);
}

/** Symbol versions stand as plain text in an ELF file's .dynstr. */
function tooNew(file) {
  const found = readFileSync(file, "latin1").matchAll(/\0(GLIBC|GLIBCXX|CXXABI)_(\d[\d.]*)(?=\0)/g);
  return [...found]
    .filter(([, library, version]) => newer(version, FLOOR[library]))
    .map(([text]) => text.slice(1));
}

function fail(message) {
  console.error(message);
  process.exit(1);
}

function needBuilt({ name, built }) {
  if (!existsSync(built))
    fail(`${name}: ${built} is not there. Build it first: pnpm build (needs CMake and a C++20 compiler)`);
}

const [action] = process.argv.slice(2);
if (action === "copy") {
  const place = places(process.cwd());
  if (process.platform !== "linux" || process.arch !== "x64")
    fail(`${place.name} can be packed on Linux on x86-64 only; this is ${process.platform}-${process.arch}`);
  needBuilt(place);
  copyFileSync(place.built, place.packed);
} else if (action === "remove") {
  rmSync(places(process.cwd()).packed, { force: true });
} else if (action === "floor") {
  for (const name of readdirSync(packages).filter((entry) => entry.endsWith(suffix))) {
    const place = places(join(packages, name));
    needBuilt(place);
    const faults = tooNew(place.built);
    if (faults.length > 0)
      fail(
        `${place.name} would need ${faults.join(", ")}; the packages promise to run with ${Object.values(FLOOR).join(", ")}`,
      );
  }
} else fail("usage: platform-binary.mjs copy | remove | floor");
