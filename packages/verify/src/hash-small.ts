import { localPath } from "@k3/hub";
import type { SnapshotFile } from "@k3/stage";
import { expectedHash } from "@k3/stage";
import { hashHere } from "./hash-here.ts";
import { provesContent } from "./hash-journal.ts";

import type { VerifyFault } from "./types.ts";

/** Compares a small file of the right size with its hash, in this thread. Undefined when it is the published one. */
export async function hashSmall(dir: string, file: SnapshotFile): Promise<VerifyFault | undefined> {
  const { path, size } = file;
  const { algorithm, hash } = expectedHash(file);
  const found = await hashHere({ path: localPath(dir, path), algorithm, size, direct: false });
  if (provesContent({ algorithm, hash: found.hash }, file)) return undefined;
  return { path, kind: "hash", expected: `${algorithm} ${hash}`, found: `${algorithm} ${found.hash}` };
}
