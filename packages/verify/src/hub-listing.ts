import { HubApiError, listFiles, modelInfo } from "@huggingface/hub";
import { type SnapshotFile, StageError, type StageOptions } from "@k3/stage";
import { z } from "zod";
import { guardedFetch } from "./guarded-fetch.ts";
import { accessToken } from "./token.ts";

const DEFAULT_ENDPOINT = "https://huggingface.co";

const treeEntry = z.object({
  type: z.string(),
  path: z.string().min(1),
  size: z.int().nonnegative(),
  oid: z.string().regex(/^[0-9a-f]{40}$/),
  lfs: z.object({ oid: z.string().regex(/^[0-9a-f]{64}$/), size: z.int().nonnegative() }).optional(),
});

/**
 * The files of a repository at a commit, with the hashes of their contents, all pages. Throws E_HUB when the Hub
 * refuses or its listing is malformed or empty, E_NETWORK when it cannot be reached.
 */
export async function listCommit(
  repo: string,
  revision: string,
  options: StageOptions & { endpoint?: string | undefined; token?: string | undefined },
): Promise<SnapshotFile[]> {
  if (!/^[\w.-]+(\/[\w.-]+)?$/.test(repo) || /(^|\/)\.+(\/|$)/.test(repo)) {
    throw new StageError("E_USAGE", `"${repo}" is not the name of a repository`, {
      hint: "write namespace/name",
    });
  }
  const endpoint = normalised(options.endpoint ?? (process.env["HF_ENDPOINT"] || DEFAULT_ENDPOINT));
  const token = await accessToken(options.token, process.env);
  const guard = guardedFetch({ endpoint, token, signal: options.signal, onEvent: options.onEvent });
  const files: SnapshotFile[] = [];
  let paths: readonly string[];
  try {
    paths = await pathsOf(repo, revision, { hubUrl: endpoint, fetch: guard.fetch });
    const entries = listFiles({
      repo: { type: "model", name: repo },
      revision,
      recursive: true,
      hubUrl: endpoint,
      fetch: guard.fetch,
    });
    for await (const entry of entries) {
      const parsed = treeEntry.safeParse(entry);
      if (!parsed.success) {
        throw new StageError(
          "E_HUB",
          `the listing of ${repo} has a malformed entry: ${z.prettifyError(parsed.error)}`,
        );
      }
      const { type, path, size, oid, lfs } = parsed.data;
      if (type !== "file") continue;
      // With `lfs`, `oid` is the hash of the pointer file.
      files.push(lfs ? { path, size: lfs.size, sha256: lfs.oid } : { path, size, gitSha1: oid });
    }
  } catch (error) {
    if (
      error instanceof HubApiError ||
      error instanceof SyntaxError ||
      error instanceof TypeError ||
      error instanceof z.ZodError
    ) {
      throw new StageError("E_HUB", `the Hub's answer cannot be used: ${error.message}`, { cause: error });
    }
    throw error;
  } finally {
    await guard.close();
  }
  if (files.length === 0) throw new StageError("E_HUB", `the listing of ${repo} at ${revision} is empty`);
  const listed = new Set(files.map(({ path }) => path));
  const lost = paths.filter((path) => !listed.has(path));
  if (lost.length > 0) {
    throw new StageError(
      "E_HUB",
      `the listing of ${repo} is incomplete: ${lost.length} files of the commit are not in it, such as ${lost[0]}`,
      { hint: "try again; if it stays so, the mirror is broken: use another --endpoint" },
    );
  }
  return files;
}

/** The paths that the Hub counts to the commit, by another route than the listing, which can end too early unnoticed. */
async function pathsOf(
  repo: string,
  revision: string,
  hub: { hubUrl: string; fetch: typeof fetch },
): Promise<string[]> {
  const info: unknown = await modelInfo({
    name: repo,
    revision,
    additionalFields: ["sha", "filePaths"],
    ...hub,
  });
  const { sha, filePaths } = z
    .looseObject({ sha: z.string(), filePaths: z.array(z.string()).optional() })
    .parse(info);
  if (sha !== revision)
    throw new StageError("E_HUB", `the Hub answers commit ${sha} when asked for ${revision}`);
  return filePaths ?? [];
}

function normalised(text: string): string {
  try {
    const url = new URL(text);
    if (/^https?:$/.test(url.protocol) && !url.username && !url.password) {
      return `${url.origin}${url.pathname.replace(/\/+$/, "")}`;
    }
  } catch {}
  throw new StageError("E_USAGE", "the endpoint is no http or https URL, or carries credentials", {
    hint: `write ${DEFAULT_ENDPOINT}`,
  });
}
