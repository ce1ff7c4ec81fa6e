import { createRequire } from "node:module";
import { loadNativeAddon } from "@k3/stage";
import type { NativeAddon } from "./native.ts";

const require = createRequire(import.meta.url);
let loaded: { addon: NativeAddon; path: string } | undefined;

/**
 * The addon, loaded at first use: what was built here, then the package for this platform. Throws E_CONFIG, naming what
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
  return ["avx512", "avx2", "neon", "scalar"].filter((name) => loadNative().isa(name) !== null);
}

function load(): { addon: NativeAddon; path: string } {
  loaded ??= loadNativeAddon({
    manifest: new URL("../package.json", import.meta.url),
    name: "@k3/engine",
    file: "k3.node",
    buildCommand: "npx k3-engine-build",
    override: "K3_ENGINE_ADDON",
  }) as { addon: NativeAddon; path: string };
  return loaded;
}
