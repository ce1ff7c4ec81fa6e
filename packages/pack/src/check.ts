import { join } from "node:path";
import { Meter, StageError } from "@k3/stage";
import { BlockJob, MANIFEST_FILE, type Trunk } from "@k3/trunk";
import type { PackSettings } from "./pack.ts";
import { phaseOf } from "./phase.ts";
import { jobOptions, type PackPlan } from "./plan.ts";

/**
 * Reads every block of a trunk, decodes it and compares it with the checkpoint. Throws E_DATA naming the first fault, and what
 * to remove: packing again would take the trunk for finished, since it does not read the blocks.
 */
export async function checkTrunk(plan: PackPlan, trunk: Trunk, settings: PackSettings): Promise<void> {
  const { threads, direct, signal, onEvent } = settings;
  const total = trunk.manifest.rawBytes;
  const meter = new Meter({
    stage: "pack",
    phase: phaseOf(plan, 0, "checking"),
    unit: "bytes",
    total,
    onEvent,
  });
  const job = BlockJob.check(jobOptions(plan, threads, direct), trunk.dataPath, trunk.table);
  try {
    const { rawBytes } = await job.finish(signal, (progress) => {
      meter.phase = phaseOf(plan, progress.blocks, "checking");
      meter.set(progress.rawBytes);
    });
    meter.set(rawBytes);
    meter.emit();
  } catch (error) {
    if (!(error instanceof StageError) || error.code !== "E_DATA") throw error;
    const hint = `remove ${join(trunk.dir, MANIFEST_FILE)} and pack again; if the checkpoint may be damaged, verify it first`;
    const { message, details } = error;
    throw new StageError("E_DATA", message, { hint, cause: error, ...(details ? { details } : {}) });
  } finally {
    job.close();
  }
}
