import type { StageOptions } from "@k3/stage";
import { readConfig } from "./config.ts";
import { indexDirectory } from "./index-directory.ts";
import type { StructureFault } from "./types.ts";

export interface StructureReport {
  faults: StructureFault[];
  /** Weight files whose headers were read. */
  shards: number;
  /** Their sizes together. */
  bytes: number;
}

/**
 * Checks the structure of a model directory and gives all faults at once instead of throwing at the first: headers,
 * spans, names, shapes and dtypes against the inventory that config.json implies, and the padding of A_log. Throws
 * E_CONFIG when config.json is refused, E_DATA when there is none.
 */
export async function checkStructure(
  dir: string,
  options: StageOptions & { stage?: string } = {},
): Promise<StructureReport> {
  const { config } = await readConfig(dir);
  const { map, faults } = await indexDirectory(dir, config, config.layers, { stage: "verify", ...options });
  return { faults, shards: map.shards.length, bytes: map.shards.reduce((sum, { size }) => sum + size, 0) };
}
