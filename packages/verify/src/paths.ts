import { join } from "node:path";
import { type SnapshotFile, StageError } from "@k3/stage";

/**
 * Refuses a manifest with a path that could lead out of the directory or into our own state, or that comes twice:
 * absolute, drive letters, backslashes, control characters, empty, `.` and `..` components, anything under `.cache`.
 * Throws E_DATA.
 */
export function requireSafePaths(files: readonly SnapshotFile[], where: string): void {
  const seen = new Set<string>();
  for (const { path } of files) {
    const parts = path.split("/");
    const unsafe =
      /[\u0000-\u001f\u007f\\:]/.test(path) ||
      !path.isWellFormed() ||
      parts.some((part) => part === "" || part === "." || part === ".." || Buffer.byteLength(part) > 255) ||
      parts[0]!.toLowerCase() === ".cache";
    if (unsafe || seen.has(path)) {
      const what = unsafe ? "an unsafe path" : "a path that is listed twice";
      throw new StageError("E_DATA", `${where}: ${what}, ${JSON.stringify(path)}: the listing is refused`);
    }
    seen.add(path);
  }
}

/** Where a file of the repository lies on this disk. */
export const localPath = (dir: string, path: string) => join(dir, ...path.split("/"));

/** The hash that the content must have. */
export function expectedHash(file: SnapshotFile): { algorithm: "sha256" | "git-sha1"; hash: string } {
  if (file.sha256 !== undefined) return { algorithm: "sha256", hash: file.sha256 };
  return { algorithm: "git-sha1", hash: file.gitSha1! };
}
