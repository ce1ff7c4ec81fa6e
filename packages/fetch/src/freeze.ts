import { type HfTreeFile, listSnapshot, resolveRevision } from "@k3/hub";
import { formatBytes, type Snapshot, StageError, selectedFiles, writeSnapshot } from "@k3/stage";
import { sizeOf } from "./paths.ts";
import type { Run } from "./run.ts";
import { selectPaths } from "./selection.ts";

/**
 * The manifest of a directory: the one it has when that is of the wanted commit, else a fresh listing, frozen now. Throws
 * E_USAGE when the directory belongs to another repository or commit.
 */
export async function freeze(
  run: Run,
  before: Snapshot | undefined,
): Promise<{ snapshot: Snapshot; tree?: Record<string, HfTreeFile> }> {
  const { settings, hub, report } = run;
  const { repo, dir } = settings;
  if (before && before.repo !== repo) {
    throw new StageError("E_USAGE", `${dir} holds files of ${before.repo}, not of ${repo}`, {
      hint: "choose another directory",
    });
  }
  if (settings.repair) {
    if (!before) throw new StageError("E_USAGE", `${dir} was not made by fetch: there is nothing to repair`);
    return { snapshot: before };
  }
  const commit = await resolveRevision(hub, repo, settings.revision);
  const { revision } = commit;
  if (before && before.revision !== revision && !settings.switchRevision) {
    throw new StageError(
      "E_USAGE",
      `${dir} holds commit ${before.revision}, but ${settings.revision} of ${repo} is ${revision}`,
      {
        hint: `continue the old one with --revision ${before.revision}, or move to the new one with --switch-revision`,
      },
    );
  }
  let files = before?.files;
  let tree: Record<string, HfTreeFile> | undefined;
  if (before?.revision !== revision) {
    const listing = await listSnapshot(hub, repo, commit);
    files = listing.files;
    tree = listing.tree;
  }
  const selected = selectPaths(files!, settings.include, settings.exclude);
  if (selected?.length === 0) {
    throw new StageError("E_USAGE", `no file of ${repo} matches --include and --exclude`);
  }
  const snapshot: Snapshot = {
    format: "k3-snapshot",
    version: 1,
    endpoint: settings.endpoint,
    repo,
    revision,
    files: files!,
    selected,
  };
  await writeSnapshot(dir, snapshot);
  const chosen = selectedFiles(snapshot);
  report.log("info", `${repo} at ${revision}: ${chosen.length} files, ${formatBytes(sizeOf(chosen))}`);
  return { snapshot, ...(tree ? { tree } : {}) };
}
