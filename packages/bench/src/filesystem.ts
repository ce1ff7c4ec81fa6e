import { randomBytes } from "node:crypto";
import { open, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import type { StageOptions } from "@k3/stage";

/** What a directory's filesystem does of what the pipeline rests on; tried, not looked up. */
export interface FilesystemFeatures {
  /** Files as long as the longest shard of the release, and longer; null where it could not be tried (no space, a quota, an error). */
  large_files: boolean | null;
  /** What is not written takes no space: part files of a download have their full length from the start. Null as above. */
  holes: boolean | null;
  /** A file is replaced by another in one step, and the directory can be synced to make it last. */
  replaces: boolean;
}

/** Longer than any shard of the release, beyond the 4 GiB of FAT. */
export const LARGE_FILE = 20e9;

/** Tries them on two small files in `dir`, which are removed. Null where nothing can be written. */
export async function filesystemFeatures(
  dir: string,
  { signal, onEvent }: StageOptions = {},
): Promise<FilesystemFeatures | null> {
  signal?.throwIfAborted();
  // Where holes are filled this takes as long as writing 20 GB.
  const message = `trying what the filesystem of ${dir} does`;
  onEvent?.({ type: "log", level: "info", stage: "doctor", message });
  // Nobody can have put a link in the place of a name that nobody knew.
  const path = join(dir, `.k3-try-${randomBytes(8).toString("hex")}`);
  const target = `${path}.old`;
  const made: string[] = [];
  try {
    for (const name of [path, target]) {
      const file = await open(name, "wx", 0o600).catch(() => null);
      if (file === null) return null;
      made.push(name);
      await file.close();
    }
    const refusal = await refusalOf(path, (file) => file.truncate(LARGE_FILE));
    const large_files = takesLargeFiles(refusal);
    signal?.throwIfAborted();
    const holes = large_files ? (await stat(path)).blocks * 512 < LARGE_FILE / 1000 : large_files;
    const replaces =
      (await rename(path, target).then(
        () => true,
        () => false,
      )) && (await refusalOf(dir, (directory) => directory.sync())) === null;
    return { large_files, holes, replaces };
  } finally {
    for (const name of made) await rm(name, { force: true });
  }
}

/** What the error of making a file long says: too long for the filesystem, or something else (ENOSPC, EDQUOT, EIO). */
export function takesLargeFiles(refusal: string | null): boolean | null {
  if (refusal === null) return true;
  return refusal === "EFBIG" || refusal === "EINVAL" ? false : null;
}

/** The code of the error that something fails with on what lies at `path`; null if it does not. */
async function refusalOf(
  path: string,
  action: (file: Awaited<ReturnType<typeof open>>) => Promise<void>,
): Promise<string | null> {
  try {
    const file = await open(path, (await stat(path)).isDirectory() ? "r" : "r+");
    try {
      await action(file);
    } finally {
      await file.close();
    }
    return null;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? "unknown";
  }
}
