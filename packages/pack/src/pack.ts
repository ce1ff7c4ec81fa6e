import { open, rm, stat } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { openCheckpoint } from "@k3/checkpoint";
import {
  lockFile,
  makeDirectory,
  requireSpace,
  StageError,
  type StageOptions,
  syncDirectory,
  throwIfAborted,
  toStageError,
} from "@k3/stage";
import {
  describeTrunk,
  openTrunk,
  PART_FILE,
  publishTrunk,
  removeLeftovers,
  type Trunk,
  type TrunkCodec,
} from "@k3/trunk";
import { checkTrunk } from "./check.ts";
import { copyBlocks } from "./copy.ts";
import { dryRun } from "./dry-run.ts";
import { findFinished, recordSourceTimes } from "./finished.ts";
import { withNumbers } from "./full-disk.ts";
import { JOURNAL_FILE, PackJournal } from "./journal.ts";
import {
  expectedDiskBytes,
  jobOptions,
  largestDataBytes,
  type PackPlan,
  planPack,
  sampleRatio,
} from "./plan.ts";
import { requireUnchanged } from "./unchanged.ts";

/** What a power loss can cost is little more work than this. */
const COMMIT_MS = 1000;

export interface PackOptions extends StageOptions {
  /** Directory of the checkpoint: config.json and *.safetensors files. */
  modelDir: string;
  /** Directory of the trunk; made when it does not exist. */
  trunkDir: string;
  /** `bf16` (the default) is lossless and takes about 0.67 of the bytes; `none` stores the weights as they are. */
  codec?: TrunkCodec | undefined;
  /** How many threads code at the same time; all cores by default. */
  threads?: number | undefined;
  /** Afterwards read everything back, decode it and compare it with the checkpoint. */
  check?: boolean | undefined;
  /** Write nothing; say what packing would take. */
  dryRun?: boolean | undefined;
  /** Bypass the page cache where the filesystem allows it; true by default. */
  direct?: boolean | undefined;
  /** About how large a decoded block is, 4096 to 2^26 bytes; 2^20 by default. */
  blockBytes?: number | undefined;
  /** How often finished blocks are made durable and recorded, in milliseconds; 1000 by default. */
  commitMs?: number | undefined;
}

export interface PackResult {
  trunk_dir: string;
  codec: TrunkCodec;
  /** Bytes of weights read, and of blocks stored (without alignment). Estimates in a dry run. */
  source_bytes: number;
  stored_bytes: number;
  blocks: number;
  /** Blocks that an earlier run had written. */
  resumed_blocks: number;
  /** Wall clock; in a dry run, what packing would take. */
  seconds: number;
  /** Whether everything was compared with the checkpoint. */
  checked: boolean;
  /** Only in a dry run: bytes of weights per second, read alone and packed. */
  dry_run?: {
    read_bytes_per_second: number;
    pack_bytes_per_second: number;
    free_bytes: number;
    fits: boolean;
  };
}

/**
 * Packs the dense weights of a checkpoint into a trunk. Resumes what an earlier call began, however that ended, and
 * returns at once when the finished trunk is there already; the result is the same to the byte. An older trunk in the
 * directory stays usable until the new one is complete.
 *
 * Throws E_DATA (the checkpoint is incomplete, or changed since packing began), E_CONFIG, E_USAGE, E_SPACE (with both
 * numbers), E_READ, E_LOCKED, E_INTERRUPTED.
 */
export async function pack(options: PackOptions): Promise<PackResult> {
  const started = performance.now();
  const { modelDir, trunkDir, signal, onEvent } = options;
  const codec = options.codec ?? "bf16";
  const threads = options.threads ?? availableParallelism();
  if (codec !== "bf16" && codec !== "none") throw new StageError("E_USAGE", `there is no codec "${codec}"`);
  if (!Number.isInteger(threads) || threads < 1 || threads > 256) {
    throw new StageError("E_USAGE", `threads is ${threads}: give 1 to 256`);
  }
  throwIfAborted(signal);
  try {
    const checkpoint = await openCheckpoint(modelDir, { signal, onEvent });
    const plan = await planPack(checkpoint, codec, options.blockBytes);
    const settings = {
      ...options,
      codec,
      threads,
      direct: options.direct ?? true,
      commitMs: options.commitMs ?? COMMIT_MS,
    };
    if (options.dryRun) return await dryRun(plan, settings);
    await makeDirectory(trunkDir);
    const lock = await lockFile(join(trunkDir, "trunk.lock"), "k3 pack");
    try {
      const { trunk, resumed } = await packLocked(plan, settings);
      if (options.check) await checkTrunk(plan, trunk, settings);
      const { manifest } = trunk;
      return {
        trunk_dir: trunkDir,
        codec,
        source_bytes: plan.sourceBytes,
        stored_bytes: manifest.storedBytes,
        blocks: manifest.table.blocks,
        resumed_blocks: resumed,
        seconds: (performance.now() - started) / 1000,
        checked: options.check ?? false,
      };
    } finally {
      await lock.release();
    }
  } catch (error) {
    throw toStageError(error);
  }
}

/** The options of a pack with nothing left open. */
export type PackSettings = PackOptions & {
  codec: TrunkCodec;
  threads: number;
  direct: boolean;
  commitMs: number;
};

async function packLocked(
  plan: PackPlan,
  settings: PackSettings,
): Promise<{ trunk: Trunk; resumed: number }> {
  const { trunkDir } = settings;
  const finished = await findFinished(trunkDir, plan);
  if (finished) {
    await discardOwnWork(trunkDir, plan);
    await removeLeftovers(trunkDir, finished.manifest);
    return { trunk: finished, resumed: plan.layout.blocks };
  }
  const journal = await openWork(plan, settings);
  const resumed = journal.blocks;
  let needed = plan.layout.blocks * 48; // the block table, about
  try {
    if (journal.blocks < plan.layout.blocks) {
      const job = jobOptions(plan, settings.threads, settings.direct);
      const ratio = await sampleRatio(plan, job, settings);
      const share = 1 - journal.offset / largestDataBytes(plan);
      needed = Math.ceil(expectedDiskBytes(plan, ratio) * (journal.blocks === 0 ? 1 : share));
      await requireSpace(trunkDir, needed, "the rest of the trunk");
      await copyBlocks(plan, journal, settings);
    }
    await requireUnchanged(plan);
    const manifest = await publishTrunk(trunkDir, { ...plan, results: journal.results });
    await recordSourceTimes(trunkDir, manifest.id, plan);
  } catch (error) {
    await journal.close();
    throw await withNumbers(error, trunkDir, needed);
  }
  await journal.remove();
  return { trunk: await openTrunk(trunkDir), resumed };
}

/** The journal and the part file in the state that they have in common, or a new beginning. */
async function openWork(plan: PackPlan, settings: PackSettings): Promise<PackJournal> {
  const { trunkDir, onEvent } = settings;
  const part = join(trunkDir, PART_FILE);
  let journal = await PackJournal.open(trunkDir, plan);
  const partBytes = await sizeOf(part);
  // All blocks written and the part renamed already: publishing just goes on.
  if (partBytes === undefined && (await isRenamed(plan, journal, trunkDir))) return journal;
  if (journal.blocks > 0 && (partBytes === undefined || partBytes < journal.offset)) {
    const message = `${part} is not what its journal says: packing begins again`;
    onEvent?.({ type: "log", level: "warn", stage: "pack", message });
    await journal.remove();
    journal = await PackJournal.open(trunkDir, plan);
  }
  try {
    const handle = await open(part, journal.blocks > 0 ? "r+" : "w");
    try {
      // What lies beyond the journal is cut off, and the file then reads as zeros from there: pages of zeros are not written.
      await handle.truncate(journal.offset);
      await handle.truncate(largestDataBytes(plan));
    } finally {
      await handle.close();
    }
    await syncDirectory(trunkDir); // the journal must never survive a power loss that the part does not
  } catch (error) {
    await journal.close();
    throw error;
  }
  return journal;
}

/** Beside a finished trunk: the journal and part of the pack that made it, when it was stopped before removing them. */
async function discardOwnWork(dir: string, plan: PackPlan): Promise<void> {
  if ((await sizeOf(join(dir, JOURNAL_FILE))) === undefined) return;
  let journal: PackJournal;
  try {
    journal = await PackJournal.open(dir, plan);
  } catch {
    return; // of another source or codec: not ours to remove
  }
  await rm(join(dir, PART_FILE), { force: true });
  await journal.remove();
}

/** Whether the data file that a complete journal describes is in the directory under its final name. */
async function isRenamed(plan: PackPlan, { blocks, results }: PackJournal, dir: string): Promise<boolean> {
  if (blocks < plan.layout.blocks) return false;
  const { data } = describeTrunk({ ...plan, results }).manifest;
  return (await sizeOf(join(dir, data.file))) === data.bytes;
}

async function sizeOf(path: string): Promise<number | undefined> {
  try {
    return (await stat(path)).size;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}
