import { readdir, stat, unlink } from "node:fs/promises";
import { dirname, join } from "node:path";
import { findToken, localPath, redactError } from "@k3/hub";
import {
  availableBytes,
  formatBytes,
  hashJournalPath,
  Journal,
  type Lock,
  lockFile,
  makeDirectory,
  type Receipt,
  readReceipt,
  readSnapshot,
  type Snapshot,
  type SnapshotFile,
  STATE_DIRECTORY,
  StageError,
  selectedFiles,
  throwIfAborted,
} from "@k3/stage";
import { adoptPartials } from "./adopt.ts";
import { KnownHashes, takeStock } from "./existing.ts";
import { freeze } from "./freeze.ts";
import { hfTreeOf, markCacheDirectory, requireNoHfProcess, writeHfTree } from "./hf-layout.ts";
import { type FetchOptions, type FetchResult, settle } from "./options.ts";
import { partName, partsDirectory, sizeOf } from "./paths.ts";
import { preflight } from "./preflight.ts";
import type { PublishContext } from "./publish.ts";
import { clearDamage, repairFile } from "./repair.ts";
import { Report } from "./report.ts";
import { Run } from "./run.ts";
import { Scheduler } from "./scheduler.ts";
import { missingBytes } from "./segments.ts";
import { downloadOrder, matcher } from "./selection.ts";

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
    // A server may repeat in its answer what it was told; an error must not.
    throw redactError(run.reason(error), token);
  } finally {
    clearInterval(ticker);
    report.end();
    await run.close();
    await lock?.release();
  }
}

async function makeTarget(dir: string): Promise<void> {
  try {
    await makeDirectory(join(dir, STATE_DIRECTORY));
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
  const known = await KnownHashes.read(dir, before?.revision ?? revision, revision, receipt);
  await makeDirectory(dirname(hashPath));
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
    await makeDirectory(partsDirectory(context.dir));
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
  run.report.log(
    "info",
    repaired.length > 0
      ? `repaired ${repaired.length} ${repaired.length === 1 ? "file" : "files"}`
      : "nothing is damaged",
  );
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
  for (const pattern of settings.first) {
    if (!wanted.some((file) => matcher([pattern])(file.path)))
      report.log("warn", `no file matches ${JSON.stringify(pattern)}, which was to come first`);
  }
  const order = downloadOrder(missing, settings.first, settings.smallBytes);
  const scheduler = new Scheduler(run, context, order);
  report.facts = () => scheduler.facts();
  const watch = setInterval(
    () => {
      scheduler.tick(total - report.meter.done, total);
      report.meter.phase = scheduler.phase();
    },
    Math.min(settings.timing.progress, settings.timing.stall / 4),
  );
  try {
    await scheduler.run();
  } catch (error) {
    throw await withSpaceNeeded(error, settings.dir, missing);
  } finally {
    clearInterval(watch);
    report.facts = () => ({});
  }
}

/** A disk that filled up: the error gets both numbers, as it has when that is seen beforehand. */
async function withSpaceNeeded(
  error: unknown,
  dir: string,
  missing: readonly SnapshotFile[],
): Promise<unknown> {
  if (!(error instanceof StageError) || error.code !== "E_SPACE") return error;
  const parts = partsDirectory(dir);
  const absent = await Promise.all(
    missing.map(async (file) =>
      (await isFile(localPath(dir, file.path), file.size)) ? 0 : missingBytes(parts, file),
    ),
  );
  const needed = absent.reduce((sum, bytes) => sum + bytes, 0);
  const available = await availableBytes(dir);
  return new StageError(
    "E_SPACE",
    `the disk of ${dir} is full: ${formatBytes(needed)} (${needed} bytes) are still to be written, ${formatBytes(available)} (${available} bytes) are free`,
    {
      hint: "free some space and run the same command again; what is written so far is kept",
      details: { needed, available, path: dir },
      cause: error,
    },
  );
}

const isFile = async (path: string, size: number) => (await stat(path).catch(() => undefined))?.size === size;

/**
 * After success the only part files of use are those of files that this run was not asked for. The others are of earlier
 * revisions, or what a kill left between a publication and its last step.
 */
async function removeStaleParts(dir: string, snapshot: Snapshot): Promise<void> {
  const parts = partsDirectory(dir);
  const wanted = new Set(selectedFiles(snapshot));
  const kept = new Set(snapshot.files.filter((file) => !wanted.has(file)).map(partName));
  for (const name of await readdir(parts).catch(() => [] as string[])) {
    const match = /^([0-9a-f]{8}-[0-9a-f]{16})(\.part|\.journal|-\d+\.chunk)$/.exec(name);
    const stale = match ? name.endsWith(".chunk") || !kept.has(match[1]!) : name.startsWith("probe-");
    if (stale) await unlink(join(parts, name));
  }
}
