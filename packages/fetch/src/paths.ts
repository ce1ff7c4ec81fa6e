import { createHash } from "node:crypto";
import { join } from "node:path";
import { expectedHash, type SnapshotFile, STATE_DIRECTORY } from "@k3/stage";

export const partsDirectory = (dir: string) => join(dir, STATE_DIRECTORY, "parts");

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
