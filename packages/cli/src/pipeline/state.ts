import { join } from "node:path";
import { parseChecked, readOptional, writeFileAtomically } from "@k3/stage";
import { z } from "zod";

export const STAGES = ["plan", "fetch", "verify", "pack", "run", "bench"] as const;
export type StageName = (typeof STAGES)[number];

const stateSchema = z.strictObject({
  format: z.literal("k3-pipeline"),
  version: z.literal(1),
  /** What this directory is for; a start that asks for something else redoes what depends on it. */
  repo: z.string(),
  revision: z.string(),
  prompt: z.string(),
  generate: z.int().nonnegative(),
  memory: z.union([z.literal("auto"), z.int().positive()]),
  /** The result of every finished stage. */
  stages: z.partialRecord(z.enum(STAGES), z.record(z.string(), z.unknown())),
});

/** `DIR/pipeline.json`: what was asked and which stages are finished. Written after each stage, atomically. */
export type PipelineState = z.infer<typeof stateSchema>;

/** The repository of a pipeline that makes its model itself. */
export const MINIATURE = "k3/miniature";

const statePath = (dir: string) => join(dir, "pipeline.json");

export async function readState(dir: string): Promise<PipelineState | undefined> {
  const text = await readOptional(statePath(dir));
  return text === undefined ? undefined : parseChecked(stateSchema, text, statePath(dir), "pipeline state");
}

export async function writeState(dir: string, state: PipelineState): Promise<void> {
  await writeFileAtomically(statePath(dir), `${JSON.stringify(stateSchema.parse(state), null, 1)}\n`);
}

/** Keeps of an earlier state what still answers the same question. */
export function carryOver(
  earlier: PipelineState | undefined,
  wanted: Omit<PipelineState, "stages">,
): PipelineState {
  if (!earlier || earlier.repo !== wanted.repo || earlier.revision !== wanted.revision)
    return { ...wanted, stages: {} };
  const stages = { ...earlier.stages };
  const same = (["prompt", "generate", "memory"] as const).every((key) => earlier[key] === wanted[key]);
  if (!same) for (const name of ["plan", "run", "bench"] as const) delete stages[name];
  return { ...wanted, stages };
}
