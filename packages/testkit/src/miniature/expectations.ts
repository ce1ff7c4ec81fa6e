import type { K3Config } from "@k3/checkpoint";
import { StageError } from "@k3/stage";
import { ReferenceModel } from "../reference/model.ts";
import type { Weights } from "../reference/weights.ts";
import type { Sample } from "./samples.ts";

/** Layers that the canary of a download runs first: of the release as of the miniature. */
const CANARY_LAYERS = 2;
const CANARY_TOKENS = 3;
/** A lead that float32 cannot turn round. */
const LEAST_MARGIN = 1e-3;

/**
 * What the miniature should answer, in the form that the canary and the bench read (`k3-expectations.json`): its
 * sentences, a run of the first two layers, and the largest residual value after each layer. All of it is what the
 * float64 pass gives. Throws E_DEFECT when the two-layer run is too close a call.
 */
export function expectationsOf(config: K3Config, weights: Weights, samples: readonly Sample[]): object {
  const source = "the float64 pass of @k3/testkit";
  const canaryIds = samples[0]!.promptIds;
  const shallow = new ReferenceModel(config, weights, { layers: CANARY_LAYERS }).generate(
    canaryIds,
    CANARY_TOKENS,
  );
  if (shallow.smallestMargin < LEAST_MARGIN) {
    throw new StageError("E_DEFECT", `two layers of the miniature lead by only ${shallow.smallestMargin}`);
  }
  const peaks: [number, number][] = [];
  new ReferenceModel(config, weights).hidden(canaryIds, undefined, (layer, residual) => {
    const largest = residual.reduce(
      (most, row) => row.reduce((m, value) => Math.max(m, Math.abs(value)), most),
      0,
    );
    peaks.push([layer, Number(largest.toPrecision(7))]);
  });
  return {
    format: "k3-expectations",
    version: 1,
    generations: [
      { prompt: null, prompt_ids: canaryIds, layers: CANARY_LAYERS, generated_ids: shallow.ids, source },
      ...samples.map(({ name, prompt, promptIds, completionIds }) => ({
        prompt: name.startsWith("sentence") ? prompt : null,
        prompt_ids: promptIds,
        layers: null,
        generated_ids: completionIds,
        source,
      })),
    ],
    hidden: { prompt_ids: canaryIds, tolerance: 1e-4, max_abs: peaks, source },
  };
}
