import type { Model } from "./model.ts";
import type { PassRecord } from "./session.ts";

/**
 * The experts chosen in a run as JSON: `layers` maps a layer to its consecutive token positions, each a list of experts by
 * descending biased score. `k3 bench cache-sim` replays it.
 */
export function traceDocument(records: readonly PassRecord[], model: Model): string {
  const top = model.config.expertsPerToken;
  const layers = model.config.feedForward.flatMap((kind, layer) =>
    kind === "moe" && layer < model.layers ? [layer] : [],
  );
  const chosen: Record<string, number[][]> = {};
  layers.forEach((layer, row) => {
    chosen[layer] = records.flatMap(({ experts, stats: { tokens } }) =>
      Array.from({ length: experts ? tokens : 0 }, (_, token) => {
        const at = (row * tokens + token) * top;
        return [...experts!.subarray(at, at + top)];
      }),
    );
  });
  const about =
    "Experts chosen: layer -> consecutive token positions -> expert ids (descending biased score).";
  return `${JSON.stringify({ about, config_sha256: model.configSha256, layers: chosen })}\n`;
}
