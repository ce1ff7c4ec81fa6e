// Builds the kernels alone, with their test and benchmark, and says where the executables are.
import { spawnSync } from "node:child_process";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const engine = resolve(dirname(fileURLToPath(import.meta.url)), "..");

/**
 * Configures and builds `native/kernels` into `build/kernels` (with sanitizers, `build/kernels-<names>`).
 * @param {string} sanitize what the compiler's -fsanitize takes, or nothing
 * @returns {string} the directory of `kernels_test` and `kernels_bench`
 * @throws {Error} when CMake fails or is absent, with its output
 */
export function buildKernels(sanitize = "") {
  const build = resolve(engine, "build", sanitize ? `kernels-${sanitize.replaceAll(",", "-")}` : "kernels");
  const ninja = spawnSync("ninja", ["--version"]).status === 0 ? ["-G", "Ninja"] : [];
  run(["-S", resolve(engine, "native/kernels"), "-B", build, ...ninja, `-DK3_SANITIZE=${sanitize}`]);
  run(["--build", build, "--parallel", "2"]);
  return build;
}

function run(args) {
  const result = spawnSync("cmake", args, { encoding: "utf8" });
  if (result.status !== 0) {
    throw new Error(
      `cmake ${args.join(" ")} failed: ${result.error?.message ?? ""}\n${result.stdout}\n${result.stderr}`,
    );
  }
}
