import { createHash } from "node:crypto";
import type { HubFile } from "./content.ts";

/** One immutable commit of a repository. */
export interface Commit {
  /** 40 hex digits. */
  readonly sha: string;
  /** Sorted by path. */
  readonly files: readonly HubFile[];
  readonly byPath: ReadonlyMap<string, HubFile>;
}

export interface RepositoryOptions {
  /** `namespace/name`, or a bare name for a canonical repository. */
  name: string;
  files: readonly HubFile[];
  /** Default: derived from the paths, sizes and hashes of the files, so the same content has the same commit anywhere. */
  commit?: string;
  /** Only callers with a valid token see it; others get 401 RepoNotFound. */
  private?: boolean;
  /** Listed for everyone; bodies only for tokens in `granted`: 401 without a token, 403 with another one. */
  gated?: boolean;
  granted?: readonly string[];
}

/** A repository on the loopback Hub: commits, and the branches and tags that point at them. */
export class Repository {
  readonly name: string;
  readonly private: boolean;
  readonly gated: boolean;
  readonly granted: ReadonlySet<string>;
  readonly commits = new Map<string, Commit>();
  /** Reference name (`main`, `refs/pr/1`, a tag) to commit. */
  readonly refs = new Map<string, string>();

  private constructor(options: RepositoryOptions) {
    this.name = options.name;
    this.private = options.private ?? false;
    this.gated = options.gated ?? false;
    this.granted = new Set(options.granted);
  }

  static async create(options: RepositoryOptions): Promise<Repository> {
    const repository = new Repository(options);
    await repository.commit(options.files, options.commit === undefined ? {} : { sha: options.commit });
    return repository;
  }

  /** Adds a commit and moves `refs` (default `main`) to it. Returns its 40 hex digits. */
  async commit(
    files: readonly HubFile[],
    options: { sha?: string; refs?: readonly string[] } = {},
  ): Promise<string> {
    const sorted = [...files].sort((a, b) => (a.path < b.path ? -1 : a.path > b.path ? 1 : 0));
    const sha = options.sha ?? (await commitOf(sorted));
    this.commits.set(sha, { sha, files: sorted, byPath: new Map(sorted.map((file) => [file.path, file])) });
    for (const ref of options.refs ?? ["main"]) this.refs.set(ref, sha);
    return sha;
  }

  /** The commit that a revision (a sha, a branch, a tag, `HEAD`) names now. */
  resolve(revision: string): Commit | undefined {
    const name = revision === "HEAD" ? "main" : revision.replace(/^refs\/(heads|tags)\//, "");
    return this.commits.get(this.refs.get(name) ?? name);
  }
}

async function commitOf(files: readonly HubFile[]): Promise<string> {
  const hash = createHash("sha1");
  for (const file of files) {
    const { sha256, oid } = await file.hashes();
    hash.update(`${sha256 ?? oid} ${file.size} ${file.path}\n`);
  }
  return hash.digest("hex");
}
