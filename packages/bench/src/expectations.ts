import { join } from "node:path";
import { PUBLISHED_RESIDUAL_PEAKS, PUBLISHED_RUNS, RELEASE } from "@k3/checkpoint";
import { parseChecked, readOptional } from "@k3/stage";
import { z } from "zod";

const ids = z.array(z.int().nonnegative());

const generation = z.strictObject({
  /** The prompt as text, for a bench that is given words; null where only ids are known. */
  prompt: z.string().nullable(),
  prompt_ids: ids,
  /** Run only the first N layers (a partial download can do that); null runs all. */
  layers: z.int().positive().nullable(),
  generated_ids: ids,
  source: z.string(),
});

const schema = z.strictObject({
  format: z.literal("k3-expectations"),
  version: z.literal(1),
  generations: z.array(generation),
  /** The largest absolute hidden value after a layer, over all positions of a prompt. */
  hidden: z
    .strictObject({
      prompt_ids: ids,
      tolerance: z.number().positive(),
      max_abs: z.array(z.tuple([z.int(), z.number()])),
      source: z.string(),
    })
    .nullable(),
});

/** What a checkpoint is known to answer: the gate of every measurement and the canary of a download. */
export type Expectations = z.infer<typeof schema>;

/** Where a checkpoint that is not the release says what it should answer; the miniature brings one. */
export const EXPECTATIONS_FILE = "k3-expectations.json";

/**
 * The expectations of a checkpoint: the published results for the release (by the SHA-256 of its config), else those
 * that the directory brings. Undefined when nothing is known.
 */
export async function expectationsOf(
  modelDir: string,
  configSha256: string,
): Promise<Expectations | undefined> {
  if (configSha256 === RELEASE.configSha256) return RELEASED;
  const path = join(modelDir, EXPECTATIONS_FILE);
  const text = await readOptional(path);
  return text === undefined ? undefined : parseChecked(schema, text, path, "list of expected results");
}

const RELEASED: Expectations = {
  format: "k3-expectations",
  version: 1,
  generations: PUBLISHED_RUNS.map((run) => ({
    prompt: run.prompt ?? null,
    prompt_ids: [...run.promptIds],
    layers: run.layers,
    generated_ids: [...run.greedyIds],
    source: "published run of the real weights (kimi-k3-in-c v1.0.0)",
  })),
  hidden: {
    prompt_ids: [3, 4, 5, 6, 7],
    // Published with six decimals by an engine whose MLA norms use another epsilon (2e-5 of the value).
    tolerance: 1e-3,
    max_abs: Object.entries(PUBLISHED_RESIDUAL_PEAKS).map(([layer, value]): [number, number] => [
      Number(layer),
      value,
    ]),
    source: "published run of the real weights (kimi-k3-in-c v1.0.0)",
  },
};
