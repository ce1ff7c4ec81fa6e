import { HubApiError, listFiles, modelInfo } from "@huggingface/hub";
import { type SnapshotFile, StageError } from "@k3/stage";
import { z } from "zod";
import type { Hub } from "./hub.ts";
import { requireSafePaths } from "./paths.ts";

/** The Hub keeps plain git files below 10 MB: a larger one without a SHA-256 means that a mirror lost it. */
export const MAX_PLAIN_BYTES = 10_000_000;

const sha1 = z.string().regex(/^[0-9a-f]{40}$/);
const sha256 = z.string().regex(/^[0-9a-f]{64}$/);

const treeEntry = z.object({
  type: z.string(),
  path: z.string().min(1),
  size: z.int().nonnegative(),
  oid: sha1,
  lfs: z.object({ oid: sha256, size: z.int().nonnegative() }).optional(),
  xetHash: z.string().optional(),
});
type TreeEntry = z.infer<typeof treeEntry>;

/** One file of `.cache/huggingface/trees/<commit>.json`, the form in which `hf` keeps a listing. */
export interface HfTreeFile {
  size: number;
  blob_id: string;
  lfs_sha256?: string;
  lfs_size?: number;
  xet_hash?: string;
}

/** Every file of a repository at one commit. */
export interface Listing {
  /** 40 hex digits. */
  revision: string;
  /** Sorted by path. */
  files: SnapshotFile[];
  /** The same for `hf`, by path. */
  tree: Record<string, HfTreeFile>;
}

const isCommit = (revision: string) => /^[0-9a-f]{40}$/.test(revision);

export interface Commit {
  revision: string;
  /** The paths that the Hub says the commit has, when it was asked. */
  paths?: string[];
}

/** The commit that a branch or tag names now. A full commit is taken as it is, without a request. */
export async function resolveRevision(hub: Hub, repo: string, revision: string): Promise<Commit> {
  return isCommit(revision) ? { revision } : askForCommit(hub, repo, revision);
}

async function askForCommit(hub: Hub, repo: string, revision: string): Promise<Commit> {
  const info = await speak(() =>
    modelInfo({
      name: repo,
      revision,
      hubUrl: hub.endpoint,
      fetch: hub.fetcher(),
      additionalFields: ["sha", "filePaths"],
    }),
  );
  const { sha, filePaths } = info as { sha?: unknown; filePaths?: unknown };
  const commit = sha1.safeParse(sha);
  if (!commit.success) throw new StageError("E_HUB", `the Hub names no commit for ${repo} at ${revision}`);
  if (isCommit(revision) && commit.data !== revision) {
    throw new StageError("E_HUB", `the Hub answers commit ${commit.data} when asked for ${revision}`);
  }
  const paths = z.array(z.string()).safeParse(filePaths);
  return { revision: commit.data, ...(paths.success && paths.data.length > 0 ? { paths: paths.data } : {}) };
}

/**
 * Lists a repository at a commit, completely, before anything is downloaded. Refuses (E_HUB) a listing whose paths are
 * unsafe, whose entries are malformed, which lacks files that the Hub says the commit has, or which has lost hashes.
 */
export async function listSnapshot(hub: Hub, repo: string, resolved: Commit): Promise<Listing> {
  const commit = resolved.paths ? resolved : await askForCommit(hub, repo, resolved.revision);
  const entries: TreeEntry[] = [];
  await speak(async () => {
    const pages = listFiles({
      repo: { type: "model", name: repo },
      revision: commit.revision,
      recursive: true,
      hubUrl: hub.endpoint,
      fetch: hub.fetcher(),
    });
    for await (const entry of pages) {
      const parsed = treeEntry.safeParse(entry);
      if (!parsed.success) {
        throw new StageError(
          "E_HUB",
          `the listing of ${repo} has a malformed entry: ${z.prettifyError(parsed.error)}`,
        );
      }
      if (parsed.data.type === "file") entries.push(parsed.data);
    }
  });
  entries.sort((a, b) => (a.path < b.path ? -1 : 1));
  requireSafePaths(entries.map((entry) => entry.path));
  requireComplete(repo, entries, commit.paths);
  return {
    revision: commit.revision,
    files: entries.map(snapshotFile),
    tree: Object.fromEntries(entries.map((entry) => [entry.path, hfTreeFile(entry)])),
  };
}

function requireComplete(repo: string, entries: TreeEntry[], paths: string[] | undefined): void {
  if (entries.length === 0) throw new StageError("E_HUB", `the listing of ${repo} is empty`);
  const listed = new Set(entries.map((entry) => entry.path));
  const missing = (paths ?? []).filter((path) => !listed.has(path));
  if (missing.length > 0) {
    throw new StageError(
      "E_HUB",
      `the listing of ${repo} is incomplete: ${missing.length} files of the commit are not in it, such as ${missing[0]}`,
      { hint: "try again; if it stays so, the mirror is broken", details: { missing } },
    );
  }
  for (const entry of entries) {
    if (!entry.lfs && entry.size > MAX_PLAIN_BYTES) {
      throw new StageError(
        "E_HUB",
        `the listing of ${repo} has no SHA-256 for ${entry.path} (${entry.size} bytes)`,
        {
          hint: "the mirror is broken; use another --endpoint",
        },
      );
    }
    if (entry.lfs && entry.lfs.size !== entry.size) {
      throw new StageError(
        "E_HUB",
        `the listing of ${repo} gives two sizes for ${entry.path}: ${entry.size} and ${entry.lfs.size}`,
      );
    }
  }
}

/** With `lfs`, `oid` is the hash of the pointer and says nothing about the bytes. */
function snapshotFile(entry: TreeEntry): SnapshotFile {
  const { path, size } = entry;
  return entry.lfs ? { path, size, sha256: entry.lfs.oid } : { path, size, gitSha1: entry.oid };
}

function hfTreeFile(entry: TreeEntry): HfTreeFile {
  const { size, oid, lfs, xetHash } = entry;
  return {
    size,
    blob_id: oid,
    ...(lfs ? { lfs_sha256: lfs.oid, lfs_size: lfs.size } : {}),
    // Redacted hashes occur in the wild (huggingface_hub#4595): only a real one is passed on.
    ...(sha256.safeParse(xetHash).success ? { xet_hash: xetHash! } : {}),
  };
}

/** Runs calls of @huggingface/hub; what it throws about answers becomes E_HUB. Our own errors pass. */
async function speak<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (error) {
    if (error instanceof HubApiError || error instanceof TypeError || error instanceof SyntaxError) {
      throw new StageError("E_HUB", `the Hub's answer cannot be used: ${error.message}`, { cause: error });
    }
    throw error;
  }
}
