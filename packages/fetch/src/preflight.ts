import { open, rename, stat, statfs, unlink } from "node:fs/promises";
import { join } from "node:path";
import { makeDirectory, requireSpace, type SnapshotFile, StageError, syncDirectory } from "@k3/stage";
import { partsDirectory } from "./paths.ts";
import type { Report } from "./report.ts";
import { missingBytes } from "./segments.ts";

/** Filesystem types (statfs f_type) on which locks and syncs may mean less than they say. */
const REMOTE = new Map([
  [0x6969, "NFS"],
  [0xff534d42, "CIFS"],
  [0xfe534d42, "SMB"],
  [0x65735546, "FUSE"],
  [0x0bd00bd0, "Lustre"],
]);

/**
 * Checks, before the first byte is asked for, that the disk can take the job: space for what is really missing (part
 * files count for what they have allocated), files of that size, writing, renaming and syncing. Throws E_SPACE, E_USAGE.
 */
export async function preflight(
  dir: string,
  missing: readonly SnapshotFile[],
  report: Report,
): Promise<void> {
  const parts = partsDirectory(dir);
  await makeDirectory(parts);
  if ((await stat(parts)).dev !== (await stat(dir)).dev) {
    throw new StageError(
      "E_USAGE",
      `${parts} is on another filesystem than ${dir}: files could not be moved into place`,
      {
        hint: "make .cache an ordinary directory of the target",
      },
    );
  }
  const needed = await Promise.all(missing.map((file) => missingBytes(parts, file)));
  const bytes = needed.reduce((sum, each) => sum + each, 0);
  if (bytes > 0) {
    // A hundredth more for metadata, journals and whatever else is written meanwhile.
    await requireSpace(dir, bytes + Math.ceil(bytes / 100) + 1024 * 1024, "the download");
  }
  const largest = missing.reduce((most, file) => Math.max(most, file.size), 0);
  await probe(parts, largest);
  const { type } = await statfs(dir);
  const remote = REMOTE.get(type);
  if (remote)
    report.log("warn", `${dir} is on ${remote}: locks and syncs may not hold there; a local disk is safer`);
}

async function probe(parts: string, size: number): Promise<void> {
  const path = join(parts, `probe-${process.pid}`);
  const handle = await open(path, "w");
  try {
    await handle.write("k3");
    await handle.truncate(size);
    await handle.sync();
    await rename(path, `${path}.renamed`);
    await syncDirectory(parts);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EFBIG") throw error;
    throw new StageError("E_USAGE", `the filesystem of ${parts} cannot hold files of ${size} bytes`, {
      hint: "use ext4, xfs or another filesystem without a 4 GiB limit (and check `ulimit -f`)",
    });
  } finally {
    await handle.close();
    for (const name of [path, `${path}.renamed`]) await unlink(name).catch(() => undefined);
  }
}
