import { randomBytes } from "node:crypto";
import { mkdir, open, rename, unlink } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";

/** fsync of a directory, so that a rename or a new name in it survives a power loss. Ignored where it is not supported. */
export async function syncDirectory(directory: string): Promise<void> {
  const handle = await open(directory, "r");
  try {
    await handle.sync();
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (code !== "EINVAL" && code !== "ENOTSUP" && code !== "EPERM") throw error;
  } finally {
    await handle.close();
  }
}

/** mkdir -p whose new entries survive a power loss. */
export async function makeDirectory(path: string): Promise<void> {
  const made = await mkdir(path, { recursive: true });
  if (made === undefined) return;
  const first = dirname(resolve(made));
  for (let at = resolve(path); at !== first; at = dirname(at)) await syncDirectory(dirname(at));
}

/** Renames a finished, already synced file into place and syncs both directories: afterwards it is there for good. */
export async function renameDurably(from: string, to: string): Promise<void> {
  await rename(from, to);
  await syncDirectory(dirname(to));
  if (dirname(from) !== dirname(to)) await syncDirectory(dirname(from));
}

/**
 * Writes a whole file so that a reader sees the old content or the new, never a mixture: aside, fsync, rename,
 * fsync of the directory. The temporary file is beside the target and is removed when writing fails.
 */
export async function writeFileAtomically(
  path: string,
  data: string | Uint8Array,
  mode = 0o644,
): Promise<void> {
  const aside = asideOf(path);
  const handle = await open(aside, "wx", mode);
  try {
    await handle.writeFile(data);
    await handle.sync();
    await handle.close();
    await renameDurably(aside, path);
  } catch (error) {
    await handle.close().catch(() => undefined);
    await unlink(aside).catch(() => undefined);
    throw error;
  }
}

/** A name of its own for each call, `NAME.HEX.tmp`, of which NAME is cut off where the whole would be longer than a name may be. */
function asideOf(path: string): string {
  const end = `.${randomBytes(6).toString("hex")}.tmp`;
  let name = basename(path);
  while (Buffer.byteLength(name + end) > 255) name = [...name].slice(0, -1).join("");
  return join(dirname(path), name + end);
}
