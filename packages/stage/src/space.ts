import { stat, statfs } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { StageError } from "./errors.ts";
import { formatBytes } from "./quantities.ts";

/**
 * Bytes that an unprivileged process may still write on the filesystem of an existing path (`bavail`, not `bfree`);
 * infinity where the filesystem does not say how large it is (ramfs, some FUSE and network filesystems: zero blocks).
 */
export async function availableBytes(path: string): Promise<number> {
  const stat = await statfs(path, { bigint: true });
  if (stat.blocks === 0n) return Number.POSITIVE_INFINITY;
  return Number(stat.bavail * stat.bsize);
}

/** The path itself if it is a directory, else the nearest one above it: the disk that it will be on. */
export async function nearestDirectory(path: string): Promise<string> {
  for (let dir = resolve(path); ; dir = dirname(dir)) {
    const found = await stat(dir).catch(() => undefined);
    if (found?.isDirectory() || dir === dirname(dir)) return dir;
  }
}

/** Refuses with E_SPACE, naming both numbers, when `needed` bytes do not fit. */
export async function requireSpace(path: string, needed: number, what: string): Promise<void> {
  const available = await availableBytes(path);
  if (needed <= available) return;
  throw new StageError(
    "E_SPACE",
    `${what} needs ${formatBytes(needed)} (${needed} bytes) on the disk of ${path}, which has ${formatBytes(available)} (${available} bytes) free`,
    {
      hint: `free ${formatBytes(needed - available)} or choose another disk`,
      details: { needed, available, path },
    },
  );
}
