import { createHash } from "node:crypto";
import { join } from "node:path";
import { type SnapshotFile, STATE_DIRECTORY, StageError } from "@k3/stage";

export const partsDirectory = (dir: string) => join(dir, STATE_DIRECTORY, "parts");

/** The content hash that a file must have, and its kind. */
export function expectedHash(file: SnapshotFile): { algorithm: "sha256" | "git-sha1"; hash: string } {
  if (file.sha256 !== undefined) return { algorithm: "sha256", hash: file.sha256 };
  if (file.gitSha1 !== undefined) return { algorithm: "git-sha1", hash: file.gitSha1 };
  throw new StageError("E_DATA", `the snapshot manifest has no hash for ${file.path}`);
}

/**
 * Name of a part file without its extension. It depends on path and content, so another revision of the same path
 * never continues this one, and never looks like anything that `hf` would take for its own.
 */
export function partName(file: SnapshotFile): string {
  const path = createHash("sha1").update(file.path).digest("hex").slice(0, 8);
  return `${path}-${expectedHash(file).hash.slice(0, 16)}`;
}

/** Bytes of all these files. */
export const sizeOf = (files: readonly SnapshotFile[]) => files.reduce((sum, file) => sum + file.size, 0);
