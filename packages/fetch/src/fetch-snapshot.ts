import { mkdir, readdir, unlink } from "node:fs/promises";
import { dirname, join } from "node:path";
import {
  formatBytes,
  hashJournalPath,
  Journal,
  type Lock,
  lockFile,
  type Receipt,
  readReceipt,
  readSnapshot,
  type Snapshot,
  type SnapshotFile,
  STATE_DIRECTORY,
  StageError,
  selectedFiles,
  throwIfAborted,
  writeSnapshot,
} from "@k3/stage";
import { adoptPartials } from "./adopt.ts";
import { KnownHashes, takeStock } from "./existing.ts";
import { markCacheDirectory, requireNoHfProcess, writeHfTree } from "./hf-layout.ts";
import { hfTreeOf, listSnapshot, resolveRevision } from "./metadata.ts";
import { type FetchOptions, type FetchResult, settle } from "./options.ts";
import { partName, partsDirectory } from "./paths.ts";
import { preflight } from "./preflight.ts";
import type { PublishContext } from "./publish.ts";
import { clearDamage, repairFile } from "./repair.ts";
import { Report } from "./report.ts";
import { Run } from "./run.ts";
import { Scheduler } from "./scheduler.ts";
import { downloadOrder, selectPaths } from "./selection.ts";
import { findToken } from "./token.ts";

/**
 * Makes a directory hold a snapshot of a model repository: lists it at an immutable commit, downloads what is missing, and
 * publishes each file only after its size and hash are the published ones. Whatever ends it (a kill, a power loss, a full
 * disk, a network that gives up, the signal), the same call goes on where it stopped.
 *
 * Throws StageError: E_USAGE (options; the directory holds another commit), E_SPACE, E_HUB (refused, or a broken
 * protocol), E_NETWORK, E_DATA (a source whose bytes are wrong), E_LOCKED, E_INTERRUPTED.
 */
export async function fetchSnapshot(options: FetchOptions): Promise<FetchResult> {
  const startedAt = performance.now();
  const settings = settle(options);
  throwIfAborted(options.signal);
  const token = await findToken(options.token);
  const report = new Report(options.onEvent, token, 1000 / settings.timing.progress);
  await makeTarget(settings.dir);
  let lock: Lock | undefined;
  if (settings.lock) lock = await lockFile(join(settings.dir, STATE_DIRECTORY, "lock"), "k3 fetch");
  const run = new Run(settings, report, token, options.signal);
  const ticker = setInterval(() => report.tick(), settings.timing.progress);
  report.tick();
  try {
    const done = await work(run);
    report.tick();
    return {
      repo: settings.repo,
      revision: done.revision,
      dir: settings.dir,
      files: done.files.length,
      bytes: sizeOf(done.files),
      downloaded_bytes: report.downloaded,
      resumed_bytes: report.resumed,
      seconds: (performance.now() - startedAt) / 1000,
      verified: true,
    };
  } catch (error) {
    throw run.reason(error);
  } finally {
    clearInterval(ticker);
    await run.close();
    await lock?.release();
  }
}

async function makeTarget(dir: string): Promise<void> {
  try {
    await mkdir(join(dir, STATE_DIRECTORY), { recursive: true });
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "EEXIST" && code !== "ENOTDIR") throw error;
    throw new StageError("E_USAGE", `${dir} is not a directory`);
  }
}

async function work(run: Run): Promise<{ revision: string; files: SnapshotFile[] }> {
  const { settings, report } = run;
  const { dir } = settings;
  const receipt = await readReceipt(dir);
  const before = await readSnapshot(dir);
  const { snapshot, tree } = await freeze(run, before);
  const wanted = selectedFiles(snapshot);
  await requireNoHfProcess(dir, wanted);
  await markCacheDirectory(dir);
  const { revision } = snapshot;
  const hashPath = hashJournalPath(dir, revision);
  const known = await KnownHashes.read(dir, [before?.revision ?? revision, revision], receipt);
  await mkdir(dirname(hashPath), { recursive: true });
  const { journal } = await Journal.open(hashPath);
  const context: PublishContext = { dir, revision, hashes: journal, disk: run.disk, published: new Map() };
  try {
    const damaged = await repairDamaged(run, context, receipt, wanted, known);
    if (settings.repair) return { revision, files: damaged.repaired };
    const others = wanted.filter((file) => !damaged.lost.includes(file) && !damaged.repaired.includes(file));
    const stock = await takeStock(run, context, others, known);
    const missing = [...stock.missing, ...damaged.lost];
    if (missing.length === 0) {
      report.begin("complete", sizeOf(wanted), sizeOf(wanted));
      report.log("info", `all ${wanted.length} files (${formatBytes(sizeOf(wanted))}) are already here`);
    } else await download(run, context, missing, wanted);
    for (const file of damaged.lost) {
      await clearDamage(dir, receipt!, file, context.published.get(file.path)!);
    }
    await writeHfTree(dir, revision, tree ?? hfTreeOf(snapshot.files));
    await removeStaleParts(dir, snapshot);
    return { revision, files: wanted };
  } finally {
    await journal.close();
  }
}

/** The manifest of this directory: the one it has when that is of the wanted commit, else a fresh listing. */
async function freeze(
  run: Run,
  before: Snapshot | undefined,
): Promise<{ snapshot: Snapshot; tree?: ReturnType<typeof hfTreeOf> }> {
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
  let tree: ReturnType<typeof hfTreeOf> | undefined;
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

/** Repairs what the receipt names as damaged; gives the files that were, and those that only a full download can mend. */
async function repairDamaged(
  run: Run,
  context: PublishContext,
  receipt: Receipt | undefined,
  wanted: readonly SnapshotFile[],
  known: KnownHashes,
): Promise<{ repaired: SnapshotFile[]; lost: SnapshotFile[] }> {
  const repaired: SnapshotFile[] = [];
  const lost: SnapshotFile[] = [];
  for (const { path, chunks } of receipt?.damaged ?? []) {
    const file = wanted.find((each) => each.path === path);
    if (!file || !receipt) continue;
    await mkdir(partsDirectory(context.dir), { recursive: true });
    const before = run.report.downloaded;
    if (await repairFile(run, context, receipt, file, chunks, known.chunkCrcs(file))) {
      repaired.push(file);
      run.report.resumed += Math.max(0, file.size - (run.report.downloaded - before));
    } else lost.push(file);
  }
  if (!run.settings.repair) return { repaired, lost };
  if (lost.length > 0) {
    const paths = lost.map((file) => file.path).join(", ");
    throw new StageError("E_DATA", `${paths}: damaged beyond the chunks that the receipt can name`, {
      hint: "run fetch without --repair: it downloads these files again",
    });
  }
  run.report.log("info", repaired.length > 0 ? `repaired ${repaired.length} files` : "nothing is damaged");
  return { repaired, lost };
}

async function download(
  run: Run,
  context: PublishContext,
  missing: readonly SnapshotFile[],
  wanted: readonly SnapshotFile[],
): Promise<void> {
  const { settings, report } = run;
  if (settings.adoptPartials) await adoptPartials(run, missing);
  await preflight(settings.dir, missing, report);
  const total = sizeOf(wanted);
  report.begin("downloading", total, total - sizeOf(missing));
  const order = downloadOrder(missing, settings.first, settings.smallBytes);
  const scheduler = new Scheduler(run, context, order);
  report.facts = () => scheduler.facts();
  const watch = setInterval(
    () => scheduler.tick(total - report.meter.done, total),
    Math.min(settings.timing.progress, settings.timing.stall / 4),
  );
  try {
    await scheduler.run();
  } finally {
    clearInterval(watch);
    report.facts = () => ({});
  }
}

/** Part files of earlier revisions are of no use any more once a run has succeeded. */
async function removeStaleParts(dir: string, snapshot: Snapshot): Promise<void> {
  const parts = partsDirectory(dir);
  const current = new Set(snapshot.files.map(partName));
  for (const name of await readdir(parts).catch(() => [] as string[])) {
    const match = /^([0-9a-f]{8}-[0-9a-f]{16})(\.part|\.journal|-\d+\.chunk)$/.exec(name);
    if (match && (!current.has(match[1]!) || name.endsWith(".chunk"))) await unlink(join(parts, name));
  }
}

const sizeOf = (files: readonly SnapshotFile[]) => files.reduce((sum, file) => sum + file.size, 0);
