import { readSnapshot, StageError, type StageOptions } from "@k3/stage";
import { readConfig } from "./config.ts";
import { describeFault, isConfigFault } from "./fault-list.ts";
import { firstLayers, indexDirectory } from "./index-directory.ts";
import type { Checkpoint, ExpertTable, StructureFault } from "./types.ts";

/** Faults that an error message lists; all of them are in its details. */
const MOST_LISTED = 20;

export interface OpenOptions extends StageOptions {
  /** Locate only the first layers (and the model level): a partial download can run them. */
  layers?: number | undefined;
}

/**
 * Reads config.json and the headers of all *.safetensors files of a model directory in one pass, and locates every
 * tensor that the config implies. The index file that comes with a checkpoint is not read. Nothing but headers is kept
 * and no weights are read (except the padding of A_log, which must be zero).
 *
 * Throws E_CONFIG (exit 2) for a config that is refused, E_USAGE for `layers` outside 1..config.layers, and one E_DATA
 * (exit 3) for all missing, surplus, misshapen or damaged tensors together (`details.faults`).
 */
export async function openCheckpoint(dir: string, options: OpenOptions = {}): Promise<Checkpoint> {
  const { config, sha256 } = await readConfig(dir);
  const layers = options.layers ?? config.layers;
  if (!Number.isInteger(layers) || layers < 1 || layers > config.layers) {
    throw new StageError("E_USAGE", `layers is ${layers}: the model of ${dir} has 1 to ${config.layers}`);
  }
  const { inventory, map, faults } = await indexDirectory(dir, config, layers, { stage: "open", ...options });
  if (faults.length > 0) throw structureError(dir, faults);
  return {
    dir,
    config,
    configSha256: sha256,
    revision: (await readSnapshot(dir))?.revision ?? null,
    layers,
    shards: map.shards,
    dense: inventory.dense
      .filter(({ layer }) => layer === null || layer < layers)
      .map(({ name }) => map.dense.get(name)!),
    embed: map.dense.get(inventory.embed.name)!,
    experts: map.experts ? firstLayers(map.experts, layers) : NO_EXPERTS,
    opaque: map.opaque,
  };
}

/** A model, or the first layers of one, without a mixture of experts. */
const NO_EXPERTS: ExpertTable = {
  format: "mxfp4",
  parts: 6,
  layers: [],
  experts: 0,
  offsets: new Float64Array(),
  shards: new Uint16Array(),
  partBytes: [0, 0, 0, 0, 0, 0],
};

/** One error for all faults: E_CONFIG when the config is among them, else E_DATA. */
export function structureError(dir: string, faults: StructureFault[]): StageError {
  const listed = faults.slice(0, MOST_LISTED).map((fault) => `\n- ${describeFault(fault)}`);
  if (faults.length > MOST_LISTED) listed.push(`\n- and ${faults.length - MOST_LISTED} more`);
  const refused = faults.some(({ kind }) => isConfigFault(kind));
  const count = `${faults.length} fault${faults.length === 1 ? "" : "s"}`;
  return new StageError(
    refused ? "E_CONFIG" : "E_DATA",
    `${dir}: ${count} in the checkpoint:${listed.join("")}`,
    {
      hint: `k3 verify ${dir} --level structure`,
      details: { faults },
    },
  );
}
