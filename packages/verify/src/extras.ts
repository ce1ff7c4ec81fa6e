import { readdir } from "node:fs/promises";
import { join } from "node:path";
import type { SnapshotFile } from "@k3/stage";

/** Folders of local state, ours and that of `hf`, which are part of no repository. */
const STATE = new Set([".cache/k3", ".cache/huggingface"]);
/** A directory with more foreign files than this is not listed further. */
const MOST = 10_000;

/** Files below the directory that the repository does not have, sorted; links to directories are not followed. */
export async function findExtras(dir: string, files: readonly SnapshotFile[]): Promise<string[]> {
  const known = new Set(files.map(({ path }) => path));
  const extra: string[] = [];
  const folders = [""];
  for (let folder = folders.pop(); folder !== undefined && extra.length < MOST; folder = folders.pop()) {
    for (const entry of await readdir(join(dir, folder), { withFileTypes: true })) {
      const path = folder === "" ? entry.name : `${folder}/${entry.name}`;
      if (entry.isDirectory()) {
        if (!STATE.has(path)) folders.push(path);
      } else if (!known.has(path)) {
        extra.push(path);
      }
    }
  }
  return extra.sort();
}
