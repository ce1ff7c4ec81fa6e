import { join } from "node:path";
import { Meter, throwIfAborted } from "@k3/stage";
import { BlockJob, PART_FILE } from "@k3/trunk";
import type { PackJournal } from "./journal.ts";
import type { PackSettings } from "./pack.ts";
import { phaseOf } from "./phase.ts";
import { jobOptions, type PackPlan } from "./plan.ts";

/** Copies the blocks that the journal does not have yet, recording them about once a second. */
export async function copyBlocks(
  plan: PackPlan,
  journal: PackJournal,
  settings: PackSettings,
): Promise<void> {
  const { trunkDir, signal, onEvent, threads, direct, commitMs } = settings;
  const { layout } = plan;
  const already = layout.rawBytes.subarray(0, journal.blocks).reduce((a, b) => a + b, 0);
  const total = layout.rawBytes.reduce((a, b) => a + b, 0);
  const meter = new Meter({
    stage: "pack",
    phase: phaseOf(plan, journal.blocks, "packing"),
    unit: "bytes",
    total,
    initial: already,
    onEvent,
  });
  const job = BlockJob.write(
    { ...jobOptions(plan, threads, direct), firstBlock: journal.blocks, firstOffset: journal.offset },
    join(trunkDir, PART_FILE),
  );
  // Shows that time passes also while the last data is made durable.
  const ticker = setInterval(() => meter.add(0), 500);
  const cancel = () => job.cancel();
  signal?.addEventListener("abort", cancel, { once: true });
  if (signal?.aborted) cancel();

  let committing: Promise<void> | undefined;
  let failure: unknown;
  let committed = performance.now();
  const commit = async () => {
    try {
      const blocks = await job.sync();
      if (blocks > journal.blocks) await journal.append(job.results(journal.blocks, blocks));
    } catch (error) {
      failure ??= error;
      job.cancel();
    } finally {
      committed = performance.now();
      committing = undefined;
    }
  };
  try {
    for (;;) {
      const progress = await job.wait(Math.min(200, commitMs));
      meter.phase = phaseOf(plan, progress.blocks, "packing");
      meter.detail = { storedBytes: progress.storedBytes, holeBytes: progress.holeBytes, ...job.direct() };
      meter.set(already + progress.rawBytes);
      if (progress.finished) break;
      if (!committing && performance.now() - committed >= commitMs) committing = commit();
    }
    await committing;
    if (!failure) await commit();
    meter.emit();
    job.throwIfFailed();
    if (failure) throw failure;
    throwIfAborted(signal);
    reportFallback(job, settings);
  } finally {
    clearInterval(ticker);
    signal?.removeEventListener("abort", cancel);
    job.close();
  }
}

function reportFallback(job: BlockJob, { direct, onEvent }: PackSettings): void {
  if (!direct) return;
  const { input, output } = job.direct();
  const cached = [...(input ? [] : ["the checkpoint"]), ...(output ? [] : ["the trunk"])];
  if (cached.length === 0) return;
  const message = `the filesystem of ${cached.join(" and of ")} has no direct access: the page cache was used`;
  onEvent?.({ type: "log", level: "info", stage: "pack", message });
}
