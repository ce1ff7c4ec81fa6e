// @ts-nocheck Plain JavaScript, as every script in this folder; the tests of the release import it.
// Fills and empties a platform package (packages/engine-linux-x64-gnu and its like) around `pnpm pack`, run in its folder:
// `copy` takes the binary that `pnpm build` has made, or for AArch64 has the cross compiler make it, and `remove` takes it
// away again, so that no stale binary stays in the workspace for the loader to find. `floor`, run from the root before a
// release, refuses binaries that are missing, of another processor, or need a newer system than the packages promise.
import { spawnSync } from "node:child_process";
import { copyFileSync, existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const packages = resolve(dirname(fileURLToPath(import.meta.url)), "../packages");
const pattern = /^(.+)-linux-(x64|arm64)-gnu$/;

/** What the oldest promised system has: Ubuntu 22.04. */
const FLOOR = { GLIBC: "2.35", GLIBCXX: "3.4.30", CXXABI: "1.3.13" };

/** `machine` is e_machine of an ELF file's header; `cross` are the tools that make the binary on another machine. */
const PROCESSORS = {
  x64: { title: "x86-64", machine: 62, cross: [] },
  arm64: { title: "AArch64", machine: 183, cross: ["aarch64-linux-gnu-g++", "cmake"] },
};

class Refusal extends Error {}

function place(dir) {
  const { name, main } = JSON.parse(readFileSync(join(dir, "package.json"), "utf8"));
  const [, owner, cpu] = pattern.exec(basename(dir));
  return { name, owner, cpu, main, packed: join(dir, main) };
}

const platformFolders = () => readdirSync(packages).filter((folder) => pattern.test(folder));
const native = ({ cpu }) => process.platform === "linux" && process.arch === cpu;
const installed = (tool) => spawnSync(tool, ["--version"]).status === 0;

/** Why this machine cannot make a platform package's binary; undefined when it can. */
function hindrance({ cpu }) {
  const { title, cross } = PROCESSORS[cpu];
  if (native({ cpu })) return undefined;
  const here = `this is ${process.platform}-${process.arch}`;
  if (cross.length === 0 || process.platform !== "linux" || process.arch !== "x64")
    return `can be packed on Linux on ${cross.length > 0 ? "x86-64 or " : ""}${title} only; ${here}`;
  const missing = cross.find((tool) => !installed(tool));
  return missing && `${missing} is missing: apt-get install g++-aarch64-linux-gnu cmake`;
}

/** The platform packages that cannot be packed on this machine: folder below packages/, and why. */
export function unpackable() {
  return platformFolders()
    .map((folder) => ({ folder, why: hindrance(place(join(packages, folder))) }))
    .filter(({ why }) => why !== undefined);
}

/** The file of the binary. A cross-compiled one is made here and now: it is never older than its sources. */
function binary(of) {
  const { name, owner, cpu, main } = of;
  const why = hindrance(of);
  if (why) throw new Refusal(`${name}: ${why}`);
  let built = join(packages, owner, "build/Release", main);
  if (!native(of)) {
    const script = join(packages, "engine/scripts/cross-build.mjs");
    const { status, stdout, stderr } = spawnSync(process.execPath, [script, owner], { encoding: "utf8" });
    if (status !== 0) throw new Refusal(`${name}: it could not be compiled\n${stderr}`);
    built = stdout.trim();
  } else if (!existsSync(built)) {
    throw new Refusal(
      `${name}: ${built} is not there. Build it first: pnpm build (needs CMake and a C++20 compiler)`,
    );
  }
  const header = readFileSync(built).subarray(0, 20);
  if (header.toString("latin1", 0, 4) !== "\x7fELF" || header.readUInt16LE(18) !== PROCESSORS[cpu].machine)
    throw new Refusal(`${name}: ${built} is no binary for ${PROCESSORS[cpu].title}`);
  return built;
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

const actions = {
  copy() {
    const here = place(process.cwd());
    copyFileSync(binary(here), here.packed);
  },
  remove() {
    rmSync(place(process.cwd()).packed, { force: true });
  },
  floor() {
    for (const here of platformFolders().map((folder) => place(join(packages, folder)))) {
      const faults = tooNew(binary(here));
      if (faults.length > 0)
        throw new Refusal(
          `${here.name} would need ${faults.join(", ")}; the packages promise to run with ${Object.values(FLOOR).join(", ")}`,
        );
    }
  },
};

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const action = process.argv[2];
  try {
    if (!Object.hasOwn(actions, action))
      throw new Refusal("usage: platform-binary.mjs copy | remove | floor");
    actions[action]();
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    console.error(error.message);
    process.exitCode = 1;
  }
}
