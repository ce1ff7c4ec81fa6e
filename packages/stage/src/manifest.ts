import { join } from "node:path";
import { z } from "zod";
import { writeFileAtomically } from "./atomic.ts";
import { StageError } from "./errors.ts";
import { readRegularFile } from "./regular-file.ts";

/** Where k3 keeps its own files inside a model directory. */
export const STATE_DIRECTORY = ".cache/k3";

export const snapshotPath = (dir: string) => join(dir, STATE_DIRECTORY, "snapshot.json");

const hex = (digits: number) => z.string().regex(new RegExp(`^[0-9a-f]{${digits}}$`));

const snapshotFile = z.strictObject({
  /** Path inside the repository, `/`-separated, checked for safety before the manifest was frozen. */
  path: z.string().min(1),
  size: z.int().nonnegative(),
  /** SHA-256 of the content (LFS and Xet files). */
  sha256: hex(64).optional(),
  /** Git blob SHA-1 of the content (plain files): sha1("blob " + size + "\0" + bytes). */
  gitSha1: hex(40).optional(),
});

const snapshotSchema = z.strictObject({
  format: z.literal("k3-snapshot"),
  version: z.literal(1),
  endpoint: z.url(),
  repo: z.string().min(1),
  /** The immutable commit that the files belong to. */
  revision: hex(40),
  /** Every file of the commit, sorted by path, whether or not this directory was asked to hold it. */
  files: z.array(snapshotFile),
  /** Paths that were asked for (include and exclude patterns applied); null means all. */
  selected: z.array(z.string()).nullable(),
});

/** The frozen listing of a repository at a commit: `DIR/.cache/k3/snapshot.json`. */
export type Snapshot = z.infer<typeof snapshotSchema>;
export type SnapshotFile = z.infer<typeof snapshotFile>;

/** Parses and checks a snapshot manifest. Throws E_DATA naming `where`. */
export function parseSnapshot(text: string, where: string): Snapshot {
  return parseChecked(snapshotSchema, text, where, "snapshot manifest");
}

/** The frozen manifest of a model directory, or undefined when there is none (a directory made by hand). */
export async function readSnapshot(dir: string): Promise<Snapshot | undefined> {
  const path = snapshotPath(dir);
  const text = await readOptional(path);
  const hint = "remove it, and `k3 fetch` lists the repository anew; files that are here already stay";
  return text === undefined ? undefined : parseChecked(snapshotSchema, text, path, "snapshot manifest", hint);
}

export async function writeSnapshot(dir: string, snapshot: Snapshot): Promise<void> {
  await writeFileAtomically(
    snapshotPath(dir),
    `${JSON.stringify(snapshotSchema.parse(snapshot), null, 1)}\n`,
  );
}

/** The files of a snapshot that this directory was asked to hold. */
export function selectedFiles(snapshot: Snapshot): SnapshotFile[] {
  if (snapshot.selected === null) return snapshot.files;
  const wanted = new Set(snapshot.selected);
  return snapshot.files.filter((file) => wanted.has(file.path));
}

/** The content hash that a file must have, and its kind. Throws E_DATA when the manifest has none for it. */
export function expectedHash(file: SnapshotFile): { algorithm: "sha256" | "git-sha1"; hash: string } {
  if (file.sha256 !== undefined) return { algorithm: "sha256", hash: file.sha256 };
  if (file.gitSha1 !== undefined) return { algorithm: "git-sha1", hash: file.gitSha1 };
  throw new StageError("E_DATA", `the snapshot manifest has no hash for ${file.path}`);
}

/** JSON text against a schema; one E_DATA error that lists every fault with its place. */
export function parseChecked<T>(
  schema: z.ZodType<T>,
  text: string,
  where: string,
  what: string,
  hint?: string,
): T {
  const options = hint === undefined ? {} : { hint };
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new StageError("E_DATA", `${where}: not a ${what}: ${(error as Error).message}`, options);
  }
  const result = schema.safeParse(value);
  if (!result.success) {
    const faults = z.prettifyError(result.error);
    throw new StageError("E_DATA", `${where}: not a valid ${what}: ${faults}`, options);
  }
  return result.data;
}

/** The text of a file, or undefined when it does not exist. */
export async function readOptional(path: string): Promise<string | undefined> {
  try {
    return (await readRegularFile(path)).toString("utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}
