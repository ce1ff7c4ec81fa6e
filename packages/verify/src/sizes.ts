import type { BigIntStats } from "node:fs";
import { lstat, open, stat } from "node:fs/promises";
import { recognise } from "@k3/checkpoint";
import { localPath } from "@k3/hub";
import type { SnapshotFile } from "@k3/stage";
import type { VerifyFault } from "./types.ts";

/**
 * Checks that a file is there, is a file, and has its published size; undefined when it is so. Reads at most some
 * hundred bytes, and only of a file that is wrong or looks like a hole, to call it by its name.
 */
export async function checkSize(dir: string, file: SnapshotFile): Promise<VerifyFault | undefined> {
  const { path, size } = file;
  const full = localPath(dir, path);
  const expected = `${size} bytes`;
  let found: BigIntStats;
  try {
    found = await stat(full, { bigint: true });
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code !== "ENOENT" && code !== "ENOTDIR")
      return { path, kind: "unreadable", expected, found: message };
    if ((await lstat(full).catch(() => undefined))?.isSymbolicLink()) {
      return {
        path,
        kind: "dangling-symlink",
        expected,
        found: "a symbolic link to nowhere",
      };
    }
    return { path, kind: "missing", expected, found: "no such file" };
  }
  if (!found.isFile())
    return { path, kind: "not-a-file", expected, found: "something that is not a regular file" };
  const same = found.size === BigInt(size);
  if (same && (size === 0 || found.blocks > 0n)) return undefined;
  let head: Buffer;
  try {
    head = await headOf(full);
  } catch (error) {
    return { path, kind: "unreadable", expected, found: (error as Error).message };
  }
  const name = recognise(head, Number(found.size), Number(found.blocks));
  if (same)
    return name?.kind === "hole"
      ? { path, kind: "hole", expected: "the file's content", found: name.found }
      : undefined;
  return {
    path,
    kind: name?.kind ?? "size",
    expected,
    found: name?.found ?? `${found.size} bytes, ${difference(Number(found.size) - size)}`,
  };
}

const difference = (bytes: number) => (bytes < 0 ? `${-bytes} too few` : `${bytes} too many`);

/** The first bytes of a file, enough for `recognise`. */
export async function headOf(path: string): Promise<Buffer> {
  const handle = await open(path, "r");
  try {
    const head = Buffer.alloc(4096);
    const { bytesRead } = await handle.read(head, 0, head.length, 0);
    return head.subarray(0, bytesRead);
  } finally {
    await handle.close();
  }
}
