import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import type { SnapshotFile } from "@k3/stage";
import { expectedHash, localPath } from "./paths.ts";
import type { VerifyFault } from "./types.ts";

/** Compares a small file of the right size with its hash, in this thread. Undefined when it is the published one. */
export async function hashSmall(dir: string, file: SnapshotFile): Promise<VerifyFault | undefined> {
  const { algorithm, hash } = expectedHash(file);
  const bytes = await readFile(localPath(dir, file.path));
  const sum = createHash(algorithm === "sha256" ? "sha256" : "sha1");
  if (algorithm === "git-sha1") sum.update(`blob ${bytes.length}\0`);
  const found = sum.update(bytes).digest("hex");
  if (found === hash) return undefined;
  return { path: file.path, kind: "hash", expected: `${algorithm} ${hash}`, found: `${algorithm} ${found}` };
}
