import { statfs } from "node:fs/promises";
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
