// The addons for Linux on AArch64, made on another machine by Debian's cross compiler: `node scripts/cross-build.mjs
// [engine|trunk]...` compiles them, or those named, and prints the file of each. What is up to date is not compiled again.
// Silent but for that when all goes well. Exit code 1 when the compiler complains, 2 when a tool is missing.
import { spawnSync } from "node:child_process";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const require = createRequire(import.meta.url);
const scripts = fileURLToPath(new URL(".", import.meta.url));
const engine = resolve(scripts, "..");
export const trunk = resolve(engine, "../trunk");
const build = resolve(engine, "build/aarch64");
const ADDONS = { engine: [engine, "k3.node"], trunk: [trunk, "k3_trunk.node"] };

/** Ends the process with 2 when one of these programs is not installed. */
export function needTools(...tools) {
  for (const tool of tools) {
    if (spawnSync(tool, ["--version"]).status === 0) continue;
    console.error(`${tool} is missing: apt-get install g++-aarch64-linux-gnu qemu-user cmake`);
    process.exit(2);
  }
}

function run(command, args) {
  const { status, stdout, stderr, error } = spawnSync(command, args, {
    encoding: "utf8",
    maxBuffer: 1 << 28,
  });
  if (status === 0) return;
  console.error(`failed: ${[command, ...args].join(" ")}\n${stdout ?? ""}${stderr ?? ""}${error ?? ""}`);
  process.exit(1);
}

/** Compiles the CMake project `source` into the folder `name` of the build directory, and gives that folder. */
export function compile(source, name, ...settings) {
  const into = resolve(build, name);
  const ninja = spawnSync("ninja", ["--version"]).status === 0 ? ["-G", "Ninja"] : [];
  const toolchain = `-DCMAKE_TOOLCHAIN_FILE=${resolve(scripts, "aarch64.cmake")}`;
  run("cmake", ["-S", source, "-B", into, ...ninja, "-DCMAKE_BUILD_TYPE=Release", toolchain, ...settings]);
  run("cmake", ["--build", into, "--parallel", "2"]);
  return into;
}

/** Compiles the addon of a package ("engine" or "trunk"), and gives its file. */
export function compileAddon(name) {
  const [source, file] = ADDONS[name];
  const headers = ["node-api-headers", "node-addon-api"].map((each) => resolve(require(each).include_dir));
  const settings = [`-DK3_NODE_INC=${headers.join(";")}`, `-DK3_TRUNK_NATIVE=${resolve(trunk, "native")}`];
  return join(compile(source, name, ...settings), "Release", file);
}

if (process.argv[1] && resolve(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const names = process.argv.slice(2);
  const strange = names.find((name) => !(name in ADDONS));
  if (strange !== undefined) {
    console.error(`usage: cross-build.mjs [${Object.keys(ADDONS).join("|")}]...; ${strange} is neither`);
    process.exit(2);
  }
  needTools("aarch64-linux-gnu-g++", "cmake");
  for (const name of names.length > 0 ? names : Object.keys(ADDONS)) console.log(compileAddon(name));
}
