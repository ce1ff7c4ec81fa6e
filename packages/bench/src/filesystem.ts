import { open, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";

/** What a directory's filesystem does of what the pipeline rests on; tried, not looked up. */
export interface FilesystemFeatures {
  /** Files as long as the longest shard of the release, and longer. */
  large_files: boolean;
  /** What is not written takes no space: part files of a download have their full length from the start. */
  holes: boolean;
  /** A file is replaced by another in one step, and the directory can be synced to make it last. */
  replaces: boolean;
}

/** Longer than any shard of the release, beyond the 4 GiB of FAT. */
export const LARGE_FILE = 20e9;

/** Tries them on two small files in `dir`, which are removed. Null where nothing can be written. */
export async function filesystemFeatures(dir: string): Promise<FilesystemFeatures | null> {
  const [path, target] = [join(dir, `.k3-try-${process.pid}`), join(dir, `.k3-try-${process.pid}.old`)];
  try {
    for (const name of [path, target]) {
      const file = await open(name, "w", 0o600).catch(() => null);
      if (file === null) return null;
      await file.close();
    }
    const large_files = await withFile(path, (file) => file.truncate(LARGE_FILE));
    const holes = large_files && (await stat(path)).blocks * 512 < LARGE_FILE / 1000;
    const replaces =
      (await rename(path, target).then(
        () => true,
        () => false,
      )) && (await withFile(dir, (directory) => directory.sync()));
    return { large_files, holes, replaces };
  } finally {
    await rm(path, { force: true });
    await rm(target, { force: true });
  }
}

/** Whether something can be done with what lies at `path`. */
async function withFile(
  path: string,
  action: (file: Awaited<ReturnType<typeof open>>) => Promise<void>,
): Promise<boolean> {
  try {
    const file = await open(path, (await stat(path)).isDirectory() ? "r" : "r+");
    try {
      await action(file);
    } finally {
      await file.close();
    }
    return true;
  } catch {
    return false;
  }
}
