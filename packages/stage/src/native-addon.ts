import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { StageError } from "./errors.ts";

/** Where a package's Node-API addon may be. */
export interface NativeAddonPlaces {
  /** The package's own package.json: the build folder lies beside it, and the platform package is resolved from it. */
  manifest: URL;
  /** The package's name; its platform packages are called NAME-linux-x64-gnu and so on. */
  name: string;
  /** The addon's file name, in build/Release. */
  file: string;
  /** The command that runs the package's scripts/build-native.mjs, which builds it from source. */
  buildCommand: string;
  /** The environment variable that names another file to load, and that one only. */
  override: string;
}

/**
 * Loads an addon: the file that the override names; or else what was built in the package, so that work on the C++ shows
 * at once; or else the platform package, an optional dependency without an install script. With K3_SANITIZE only the
 * build under those sanitizers counts. Throws E_CONFIG with what was tried and the build command.
 * @returns the addon's exports and the path of its file
 */
export function loadNativeAddon(places: NativeAddonPlaces): { addon: unknown; path: string } {
  const require = createRequire(places.manifest);
  const tried: string[] = [];
  for (const candidate of candidates(places)) {
    if (candidate.startsWith("/") && !existsSync(candidate)) {
      tried.push(`${candidate}: not there`);
      continue;
    }
    try {
      return { addon: require(candidate) as unknown, path: require.resolve(candidate) };
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      tried.push(`${candidate}: ${code === "MODULE_NOT_FOUND" ? "not installed" : message.split("\n")[0]}`);
    }
  }
  const script = fileURLToPath(new URL("scripts/build-native.mjs", places.manifest));
  throw new StageError(
    "E_CONFIG",
    `the native part of ${places.name} is not there:\n- ${tried.join("\n- ")}`,
    {
      hint: `build it with \`${places.buildCommand}\`, or where npx does not find that \`node ${script}\` (needs CMake 3.20 and a C++20 compiler)`,
      details: { tried },
    },
  );
}

function candidates({ manifest, name, file, override }: NativeAddonPlaces): string[] {
  const chosen = process.env[override];
  if (chosen) return [resolve(chosen)];
  const sanitizers = process.env["K3_SANITIZE"];
  const built = (folder: string) => fileURLToPath(new URL(`${folder}/Release/${file}`, manifest));
  if (sanitizers) return [built(`build-${sanitizers.replaceAll(",", "-")}`)];
  const libc = process.platform === "linux" ? "-gnu" : "";
  return [built("build"), `${name}-${process.platform}-${process.arch}${libc}`];
}
