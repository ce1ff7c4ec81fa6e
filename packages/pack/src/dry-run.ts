import { mkdtemp, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { availableBytes, Meter, nearestDirectory } from "@k3/stage";
import { BlockJob } from "@k3/trunk";
import type { PackResult, PackSettings } from "./pack.ts";
import { expectedDiskBytes, jobOptions, largestDataBytes, type PackPlan, sampleBlocks } from "./plan.ts";

/** Blocks that are read, and then packed, to measure both disks. */
const SAMPLE = 192;

/**
 * What packing would take: measures reading on some blocks from all over the checkpoint and packing on others, into a
 * temporary directory on the trunk's disk that is removed again. Writes nothing else.
 */
export async function dryRun(plan: PackPlan, settings: PackSettings): Promise<PackResult> {
  const { trunkDir, threads, direct, signal, onEvent } = settings;
  const options = jobOptions(plan, threads, direct);
  const meter = new Meter({
    stage: "pack",
    phase: "measuring the disks",
    unit: "bytes",
    total: null,
    onEvent,
  });
  const layout = sampleBlocks(plan.layout, SAMPLE);
  const started = performance.now();
  const reading = BlockJob.measure({ ...options, layout });
  const read = await reading.finish(signal, (p) => meter.set(p.rawBytes)).finally(() => reading.close());
  const readSeconds = (performance.now() - started) / 1000;

  const existing = await nearestDirectory(trunkDir);
  const scratch = await mkdtemp(join(existing, ".k3-pack-dry-run-"));
  let packSeconds: number;
  try {
    const part = join(scratch, "part");
    await writeFile(part, "");
    await truncate(part, largestDataBytes({ ...plan, layout }));
    const begun = performance.now();
    const job = BlockJob.write({ ...options, layout: shiftedSample(plan) }, part);
    try {
      await job.finish(signal, (p) => meter.set(read.rawBytes + p.rawBytes));
      await job.sync();
    } finally {
      job.close();
    }
    packSeconds = (performance.now() - begun) / 1000;
  } finally {
    await rm(scratch, { recursive: true, force: true });
  }
  const readRate = read.rawBytes / readSeconds;
  const packRate = read.rawBytes / packSeconds;
  const ratio = plan.codec === "none" ? 1 : read.storedBytes / read.rawBytes;
  const free = await availableBytes(existing);
  return {
    trunk_dir: trunkDir,
    codec: plan.codec,
    source_bytes: plan.sourceBytes,
    stored_bytes: Math.ceil(plan.sourceBytes * ratio),
    blocks: plan.layout.blocks,
    resumed_blocks: 0,
    seconds: plan.sourceBytes / packRate,
    checked: false,
    dry_run: {
      read_bytes_per_second: readRate,
      pack_bytes_per_second: packRate,
      free_bytes: free,
      fits: expectedDiskBytes(plan, ratio) <= free,
    },
  };
}

/** As many blocks as the sample has, but other ones where there are others, so that no cache answers. */
function shiftedSample(plan: PackPlan) {
  const { layout } = plan;
  const step = Math.max(1, Math.ceil(layout.blocks / SAMPLE));
  const shift = Math.floor(step / 2);
  if (shift === 0) return sampleBlocks(layout, SAMPLE);
  const rest = {
    ...layout,
    blocks: layout.blocks - shift,
    rawBytes: layout.rawBytes.subarray(shift),
    segmentStart: layout.segmentStart.subarray(shift),
  };
  return sampleBlocks(rest, SAMPLE);
}
