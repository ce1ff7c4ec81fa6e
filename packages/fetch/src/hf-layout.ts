import { createHash } from "node:crypto";
import { readdir, readFile, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import type { HfTreeFile } from "@k3/hub";
import {
  expectedHash,
  makeDirectory,
  readOptional,
  type SnapshotFile,
  StageError,
  writeFileAtomically,
} from "@k3/stage";

/**
 * The state that `hf download --local-dir` keeps in `DIR/.cache/huggingface`: we leave what it would have left, so that
 * it accepts the directory without a request for any file, and find what an interrupted one has left.
 */
const hfDirectory = (dir: string) => join(dir, ".cache", "huggingface");
const downloadPath = (dir: string, path: string) =>
  join(hfDirectory(dir), "download", ...`${path}`.split("/"));

/** Marks the directory as a cache, for backup programs and for git, as `hf` does. */
export async function markCacheDirectory(dir: string): Promise<void> {
  const cache = hfDirectory(dir);
  await makeDirectory(cache);
  const marks: [string, string][] = [
    [".gitignore", "*"],
    [
      "CACHEDIR.TAG",
      "Signature: 8a477f597d28d172789f06886806bc55\n# Download state of Hugging Face tools.\n",
    ],
  ];
  for (const [name, text] of marks) {
    const path = join(cache, name);
    if ((await readOptional(path)) === undefined) await writeFileAtomically(path, text);
  }
}

/**
 * Writes `<path>.metadata`: commit, entity tag (the content hash), time in seconds. `hf` trusts the file while its
 * mtime is not later than that time, so this must come after the rename into place. A file whose name is too long for
 * that gets none: `hf` could not keep one either.
 */
export async function writeHfMetadata(dir: string, revision: string, file: SnapshotFile): Promise<void> {
  const path = `${downloadPath(dir, file.path)}.metadata`;
  await makeDirectory(dirname(path));
  const text = `${revision}\n${expectedHash(file).hash}\n${Date.now() / 1000}\n`;
  await writeFileAtomically(path, text).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "ENAMETOOLONG") throw error;
  });
}

/** Writes the listing of a commit where `hf` keeps it. */
export async function writeHfTree(
  dir: string,
  revision: string,
  files: Record<string, HfTreeFile>,
): Promise<void> {
  const path = join(hfDirectory(dir), "trees", `${revision}.json`);
  await makeDirectory(dirname(path));
  await writeFileAtomically(path, JSON.stringify({ format_version: 1, files }));
}

/**
 * Partial files of a file that an interrupted `hf` left, longest first: `<B64>.<etag>.incomplete` (up to 1.17) and
 * `<B64>.<etag>.<8 hex>.incomplete` (from 1.18), where B64 is the URL-safe base64 of the SHA-1 of "<basename>.metadata".
 */
export async function hfPartials(dir: string, file: SnapshotFile): Promise<{ path: string; size: number }[]> {
  const directory = dirname(downloadPath(dir, file.path));
  const names = await readdir(directory).catch(() => [] as string[]);
  const digest = createHash("sha1")
    .update(`${basename(file.path)}.metadata`)
    .digest("base64");
  const stem = `${digest.replaceAll("+", "-").replaceAll("/", "_")}.${expectedHash(file).hash}`;
  const ours = names.filter(
    (name) => name.startsWith(stem) && /^(\.[0-9a-f]{8})?\.incomplete$/.test(name.slice(stem.length)),
  );
  const found = await Promise.all(
    ours.map(async (name) => {
      const path = join(directory, name);
      const info = await stat(path).catch(() => undefined);
      return info?.isFile() ? [{ path, size: info.size }] : [];
    }),
  );
  return found.flat().sort((a, b) => b.size - a.size);
}

/** Refuses (E_LOCKED) when a running `hf` holds the lock of one of the files: Linux tells who holds which inode. */
export async function requireNoHfProcess(dir: string, files: readonly SnapshotFile[]): Promise<void> {
  const text = await readFile("/proc/locks", "utf8").catch(() => "");
  const held = new Map<string, string>();
  for (const line of text.split("\n")) {
    const match = /FLOCK\s+ADVISORY\s+WRITE\s+(\d+)\s+([0-9a-f]+):([0-9a-f]+):(\d+)\s/.exec(line);
    if (match)
      held.set(`${Number.parseInt(match[2]!, 16)}:${Number.parseInt(match[3]!, 16)}:${match[4]}`, match[1]!);
  }
  if (held.size === 0) return;
  for (const file of files) {
    const path = `${downloadPath(dir, file.path)}.lock`;
    const info = await stat(path, { bigint: true }).catch(() => undefined);
    const pid = info && held.get(`${deviceNumbers(info.dev)}:${info.ino}`);
    if (pid !== undefined) {
      throw new StageError("E_LOCKED", `process ${pid} (hf download?) is at work on ${file.path} in ${dir}`, {
        hint: "wait for it to finish, or stop it, and run the same command again",
      });
    }
  }
}

/** Major and minor number of a Linux dev_t (gnu_dev_major and gnu_dev_minor of glibc). */
function deviceNumbers(dev: bigint): string {
  const major = ((dev >> 8n) & 0xfffn) | ((dev >> 32n) & ~0xfffn);
  const minor = (dev & 0xffn) | ((dev >> 12n) & ~0xffn);
  return `${major}:${minor}`;
}

/** A listing as `hf` keeps it, from a frozen manifest: that has no hashes of LFS pointers, which follow from their fixed form. */
export function hfTreeOf(files: readonly SnapshotFile[]): Record<string, HfTreeFile> {
  return Object.fromEntries(
    files.map(({ path, size, sha256: lfs, gitSha1 }): [string, HfTreeFile] => {
      if (lfs === undefined) return [path, { size, blob_id: gitSha1! }];
      const pointer = `version https://git-lfs.github.com/spec/v1\noid sha256:${lfs}\nsize ${size}\n`;
      const blob_id = createHash("sha1").update(`blob ${pointer.length}\0${pointer}`).digest("hex");
      return [path, { size, blob_id, lfs_sha256: lfs, lfs_size: size }];
    }),
  );
}
