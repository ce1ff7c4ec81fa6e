import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { MAX_PLAIN_BYTES } from "@k3/hub";
import {
  formatBytes,
  parseChecked,
  parseSnapshot,
  readSnapshot,
  type SnapshotFile,
  StageError,
  snapshotPath,
} from "@k3/stage";
import { z } from "zod";
import { listCommit } from "./from-hub.ts";
import { requireSafePaths } from "./paths.ts";
import type { VerifyOptions } from "./types.ts";

const MAX_MANIFEST_BYTES = 256 * 1024 * 1024;

/** What a directory should hold, and who says so. */
export interface Expected {
  /** In words, for messages. */
  source: string;
  repo: string | null;
  revision: string | null;
  /** Name of the hash journal: the commit, or a name made from the manifest where it names none. */
  key: string;
  /** Every file of the repository, sorted by path. */
  files: SnapshotFile[];
  /** Those of them that the directory was asked to hold. */
  selected: SnapshotFile[];
}

/**
 * The listing to check against: a manifest file, the Hub at a commit, or the manifest frozen in the directory, in this
 * order. Undefined when there is none of them. Throws E_USAGE for contradicting options and E_DATA for a manifest that
 * is damaged, unsafe, or has lost the hash of a large file; E_HUB and E_NETWORK as listCommit does.
 */
export async function loadExpected(options: VerifyOptions): Promise<Expected | undefined> {
  const { dir, repo, revision, manifest } = options;
  if (manifest !== undefined && repo !== undefined) {
    throw new StageError("E_USAGE", "a manifest file and a repository are two sources of truth", {
      hint: "give --manifest, or --repo and --revision",
    });
  }
  if (repo !== undefined) {
    if (revision === undefined || !/^[0-9a-f]{40}$/.test(revision)) {
      throw new StageError(
        "E_USAGE",
        `${revision ?? "no revision"} is not a commit: a moving name proves nothing`,
        {
          hint: `give --revision with the 40 hexadecimal digits of a commit of ${repo}`,
        },
      );
    }
    const frozen = await readSnapshot(dir);
    const files = await listCommit(repo, revision, options);
    const selected = frozen?.revision === revision && frozen.repo === repo ? frozen.selected : null;
    return complete({ source: `${repo} at ${revision}`, repo, revision, key: revision, files }, selected);
  }
  if (revision !== undefined && manifest === undefined) {
    throw new StageError("E_USAGE", "a revision alone names no files", { hint: "give --repo as well" });
  }
  if (manifest !== undefined) return fromFile(manifest, revision);
  const frozen = await readSnapshot(dir);
  if (!frozen) return undefined;
  const { files } = frozen;
  const source = snapshotPath(dir);
  return complete(
    { source, repo: frozen.repo, revision: frozen.revision, key: frozen.revision, files },
    frozen.selected,
  );
}

function complete(listing: Omit<Expected, "selected">, selected: string[] | null): Expected {
  const files = [...listing.files].sort((a, b) => (a.path < b.path ? -1 : 1));
  requireSafePaths(files, listing.source);
  for (const { path, size, sha256, gitSha1 } of files) {
    if (sha256 !== undefined || (gitSha1 !== undefined && size <= MAX_PLAIN_BYTES)) continue;
    const lost = gitSha1 === undefined ? "no hash" : "no SHA-256";
    throw new StageError(
      "E_DATA",
      `${listing.source}: ${lost} for ${path} (${formatBytes(size)}): nothing could be proved by it`,
      {
        hint: "the listing comes from a mirror that lost hashes; take it from the Hub itself with --repo and --revision",
      },
    );
  }
  const wanted = selected && new Set(selected);
  return { ...listing, files, selected: wanted ? files.filter(({ path }) => wanted.has(path)) : files };
}

const hex = (digits: number) => z.string().regex(new RegExp(`^[0-9a-f]{${digits}}$`));

/** A listing as `hf` keeps it (hub.md 3: `trees/COMMIT.json`). */
const hfTree = z.object({
  format_version: z.literal(1),
  files: z.record(
    z.string(),
    z.object({
      size: z.int().nonnegative(),
      blob_id: hex(40),
      lfs_sha256: hex(64).nullish(),
      lfs_size: z.int().nonnegative().nullish(),
    }),
  ),
});

async function fromFile(path: string, revision: string | undefined): Promise<Expected> {
  const bytes = await readFile(path);
  if (bytes.length > MAX_MANIFEST_BYTES) throw new StageError("E_DATA", `${path}: too large for a manifest`);
  const text = bytes.toString("utf8");
  const digest = createHash("sha256").update(bytes).digest("hex");
  const parsed = parseChecked(
    z.looseObject({ format: z.string().optional(), format_version: z.int().optional() }),
    text,
    path,
    "manifest",
  );
  if (parsed.format === "k3-snapshot") {
    const { repo, revision: commit, files, selected } = parseSnapshot(text, path);
    requireSame(revision, commit, path);
    return complete({ source: path, repo, revision: commit, key: commit, files }, selected);
  }
  if (parsed.format_version === undefined) {
    throw new StageError("E_DATA", `${path}: neither a k3 snapshot manifest nor a tree file of hf`);
  }
  const { files } = parseChecked(hfTree, text, path, "tree file of hf");
  // With an LFS hash, blob_id is that of the pointer and says nothing about the content.
  const listed = Object.entries(files).map(
    ([name, { size, blob_id, lfs_sha256, lfs_size }]): SnapshotFile =>
      lfs_sha256
        ? { path: name, size: lfs_size ?? size, sha256: lfs_sha256 }
        : { path: name, size, gitSha1: blob_id },
  );
  const commit = /^([0-9a-f]{40})\.json$/.exec(basename(path))?.[1] ?? null;
  requireSame(revision, commit ?? revision ?? null, path);
  const named = commit ?? revision ?? null;
  return complete(
    {
      source: path,
      repo: null,
      revision: named,
      key: named ?? `manifest-${digest.slice(0, 32)}`,
      files: listed,
    },
    null,
  );
}

function requireSame(wanted: string | undefined, found: string | null, path: string): void {
  if (wanted === undefined || wanted === found) return;
  throw new StageError("E_USAGE", `${path} is of commit ${found}, not of ${wanted}`);
}

/** What to do about a directory that has no manifest. */
export async function withoutManifest(dir: string): Promise<string> {
  const trees = await readdir(join(dir, ".cache/huggingface/trees")).catch(() => []);
  const tree = trees.find((name) => /^[0-9a-f]{40}\.json$/.test(name));
  const given = tree
    ? `--manifest ${join(dir, ".cache/huggingface/trees", tree)}`
    : "--repo REPO --revision COMMIT, or --manifest FILE";
  return `k3 verify ${dir} --level structure, or say what it should hold: ${given}`;
}
