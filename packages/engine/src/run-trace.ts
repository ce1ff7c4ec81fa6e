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
  const expert_bytes = expertBytes(records);
  const document = {
    about,
    config_sha256: model.configSha256,
    ...(expert_bytes ? { expert_bytes } : {}),
    layers: chosen,
  };
  return `${JSON.stringify(document)}\n`;
}

/** All routed experts are of one size: what was read over how many were; undefined when all were in memory. */
function expertBytes(records: readonly PassRecord[]): number | undefined {
  const reads = records.reduce((sum, { stats }) => sum + stats.experts.read, 0);
  const bytes = records.reduce((sum, { stats }) => sum + stats.read.expert_bytes, 0);
  return reads > 0 ? bytes / reads : undefined;
}
