import { createRequire } from "node:module";
import { StageError } from "@k3/stage";
import type { NativeAddon } from "./native.ts";

const require = createRequire(import.meta.url);
let loaded: { addon: NativeAddon; path: string } | undefined;

/**
 * The addon, loaded at first use: what was built here, then the package for this platform. Throws E_USAGE, naming what
 * was tried and the remedy, when there is neither.
 */
export function loadNative(): NativeAddon {
  return load().addon;
}

/** The addon in use, for receipts of measurements: its file, and this package's version. Throws as loadNative. */
export function nativeFile(): { path: string; version: string } {
  const { version } = require("../package.json") as { version: string };
  return { path: load().path, version };
}

/** The instruction sets that this processor runs, best first; "scalar" is always among them. Throws as loadNative. */
export function instructionSets(): string[] {
  return ["avx512", "avx2", "scalar"].filter((name) => loadNative().isa(name) !== null);
}

function load(): { addon: NativeAddon; path: string } {
  if (loaded) return loaded;
  const platform = `@k3/engine-${process.platform}-${process.arch}${process.platform === "linux" ? "-gnu" : ""}`;
  const candidates = [process.env["K3_ENGINE_ADDON"], "../build/Release/k3.node", platform].filter(
    (path): path is string => path !== undefined && path !== "",
  );
  const tried: string[] = [];
  for (const path of candidates) {
    try {
      loaded = { addon: require(path) as NativeAddon, path: require.resolve(path) };
      return loaded;
    } catch (error) {
      tried.push(`${path}: ${(error as Error).message.split("\n")[0]}`);
    }
  }
  throw new StageError("E_USAGE", `the native engine is not there:\n- ${tried.join("\n- ")}`, {
    hint: "build it with `npx k3-engine-build` (needs CMake and a C++20 compiler)",
  });
}
