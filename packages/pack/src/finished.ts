import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { StageError, writeFileAtomically } from "@k3/stage";
import { openTrunk, type Trunk } from "@k3/trunk";
import { z } from "zod";
import { packDifferences } from "./journal.ts";
import type { PackPlan } from "./plan.ts";

/**
 * Beside a finished trunk: the modification times of its source. They are no part of the trunk, which is the same
 * wherever and whenever it is packed; they only tell whether packing again would give the same.
 */
const TIMES_FILE = "trunk.source.json";

const timesSchema = z.strictObject({ id: z.string(), mtimesNs: z.array(z.string()) });

export async function recordSourceTimes(dir: string, id: string, plan: PackPlan): Promise<void> {
  const record = { id, mtimesNs: plan.identities.map(({ mtimeNs }) => mtimeNs) };
  await writeFileAtomically(join(dir, TIMES_FILE), `${JSON.stringify(record)}\n`);
}

/**
 * The trunk of a directory, if it is finished, whole, and what this plan would give. A trunk of something else, or a
 * damaged one, is no error here: it stays as it is until the new one replaces it.
 */
export async function findFinished(dir: string, plan: PackPlan): Promise<Trunk | undefined> {
  let trunk: Trunk;
  try {
    trunk = await openTrunk(dir);
  } catch (error) {
    if (error instanceof StageError && error.code === "E_DATA") return undefined;
    throw error;
  }
  const { manifest } = trunk;
  if (manifest.codec !== plan.codec || manifest.blockBytes !== plan.blockBytes) return undefined;
  const tensors = plan.tensors.map(({ name, dtype, shape, layer }) => ({ name, dtype, shape, layer }));
  if (JSON.stringify(manifest.tensors) !== JSON.stringify(tensors)) return undefined;
  const before = { source: manifest.source, mtimesNs: await sourceTimes(dir, manifest.id) };
  const now = { source: plan.source, mtimesNs: plan.identities.map(({ mtimeNs }) => mtimeNs) };
  return packDifferences(before, now).length === 0 ? trunk : undefined;
}

async function sourceTimes(dir: string, id: string): Promise<string[]> {
  try {
    const record = timesSchema.parse(JSON.parse(await readFile(join(dir, TIMES_FILE), "utf8")));
    return record.id === id ? record.mtimesNs : [];
  } catch {
    return []; // not there or not readable: then nothing is known, and the trunk is packed again
  }
}
