import { join } from "node:path";
import { StageError } from "@k3/stage";

const MAX_COMPONENT_BYTES = 255;
const MAX_PATH_BYTES = 3000;
const WINDOWS_DEVICE = /^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?$/i;

/**
 * Why a path of a repository must not become a path on this disk, or undefined when it is safe. The rules of POSIX and
 * of Windows both apply wherever we run, so that a manifest is safe on every machine it is carried to.
 */
export function unsafePath(path: string): string | undefined {
  if (path === "") return "it is empty";
  if (!path.isWellFormed()) return "it is not valid Unicode";
  if (/[\u0000-\u001f\u007f]/.test(path)) return "it contains a control character";
  if (path.includes("\\")) return "it contains a backslash";
  if (path.startsWith("/")) return "it is absolute";
  if (path.includes(":")) return "it contains a colon (a drive letter or a stream on Windows)";
  if (Buffer.byteLength(path) > MAX_PATH_BYTES) return `it is longer than ${MAX_PATH_BYTES} bytes`;
  for (const part of path.split("/")) {
    if (part === "") return "it has an empty component";
    if (part === "." || part === "..") return `it has a "${part}" component`;
    if (/[. ]$/.test(part)) return "a component ends in a dot or a space";
    if (WINDOWS_DEVICE.test(part)) return `"${part}" is a device name on Windows`;
    if (Buffer.byteLength(part) > MAX_COMPONENT_BYTES)
      return `a component is longer than ${MAX_COMPONENT_BYTES} bytes`;
  }
  if (/^\.cache(\/|$)/i.test(path)) return "it lies in .cache, where local state is kept";
  return undefined;
}

/**
 * Refuses a listing that could write outside its directory or whose files would overwrite one another: unsafe paths,
 * duplicates, names that differ only in case or Unicode form, a file where another file needs a directory.
 * Throws E_HUB naming the first offenders.
 */
export function requireSafePaths(paths: readonly string[]): void {
  const faults: string[] = [];
  const seen = new Map<string, string>();
  for (const path of paths) {
    const reason = unsafePath(path);
    if (reason) {
      faults.push(`${JSON.stringify(path)}: ${reason}`);
      continue;
    }
    const folded = fold(path);
    const other = seen.get(folded);
    if (other !== undefined) {
      const what = other === path ? "it is listed twice" : `it collides with ${JSON.stringify(other)}`;
      faults.push(`${JSON.stringify(path)}: ${what}`);
    }
    seen.set(folded, path);
  }
  for (const [folded, path] of seen) {
    for (let slash = folded.indexOf("/"); slash >= 0; slash = folded.indexOf("/", slash + 1)) {
      const file = seen.get(folded.slice(0, slash));
      if (file !== undefined) faults.push(`${JSON.stringify(path)}: ${JSON.stringify(file)} is a file`);
    }
  }
  if (faults.length === 0) return;
  const more = faults.length > 5 ? ` and ${faults.length - 5} more` : "";
  throw new StageError(
    "E_HUB",
    `the repository lists unsafe paths, which are refused: ${faults.slice(0, 5).join("; ")}${more}`,
    { hint: "nothing was written; ask the owner of the repository to rename them", details: { faults } },
  );
}

/** Names that a case-insensitive or normalising filesystem would take for the same. */
const fold = (path: string) => path.normalize("NFC").toLowerCase();

/** Where a file of the repository lies on this disk. The path must have passed `requireSafePaths`. */
export const localPath = (dir: string, path: string) => join(dir, ...path.split("/"));
