#!/usr/bin/env node
// Builds the native addon of a package with plain CMake: `node build-native.mjs [PACKAGE_DIR]`. Also used by
// @k3/engine, whose addon compiles the codec from this package's sources.
import { spawnSync } from "node:child_process";
import { realpathSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

/** Configures and builds `packageDir/CMakeLists.txt` into `packageDir/build` (or `build-<sanitizers>`). */
export function buildNative(packageDir) {
  const require = createRequire(resolve(packageDir, "package.json"));
  const includes = [require("node-api-headers").include_dir, require("node-addon-api").include_dir].map(
    (dir) => resolve(dir),
  );
  const sanitize = process.env.K3_SANITIZE ?? "";
  const build = resolve(packageDir, sanitize ? `build-${sanitize.replaceAll(",", "-")}` : "build");
  const trunk = resolve(dirname(fileURLToPath(import.meta.url)), "..");
  const ninja = spawnSync("ninja", ["--version"]).status === 0 ? ["-G", "Ninja"] : [];
  run("cmake", [
    ...["-S", packageDir, "-B", build, ...ninja, "-DCMAKE_BUILD_TYPE=Release"],
    `-DK3_NODE_INC=${includes.join(";")}`,
    `-DK3_TRUNK_NATIVE=${resolve(trunk, "native")}`,
    `-DK3_SANITIZE=${sanitize}`,
  ]);
  run("cmake", ["--build", build, "--parallel", "2"]);
}

function run(command, args) {
  const result = spawnSync(command, args, { stdio: "inherit" });
  if (result.error?.code === "ENOENT") {
    console.error(
      `${command} is not installed. The native parts of k3 need CMake 3.20 or later and a C++20 compiler.`,
    );
    console.error("On Debian or Ubuntu: apt-get install cmake g++");
    process.exit(2);
  }
  if (result.status !== 0) process.exit(result.status ?? 1);
}

// npm starts it through a symbolic link in node_modules/.bin.
if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  buildNative(resolve(process.argv[2] ?? resolve(dirname(fileURLToPath(import.meta.url)), "..")));
}
