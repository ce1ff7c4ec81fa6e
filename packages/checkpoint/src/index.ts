export { type ByteArithmetic, byteArithmetic, layerBytesOf } from "./arithmetic.ts";
export { parseConfig, readConfig } from "./config.ts";
export { endIdsOf } from "./end-ids.ts";
export { describeFault } from "./fault-list.ts";
export { type HeaderFault, MAX_HEADER_BYTES, parseHeader } from "./header.ts";
export { HeaderTable } from "./header-table.ts";
export { inventory, MXFP4_GROUP } from "./inventory.ts";
export { type OpenOptions, openCheckpoint, structureError } from "./open.ts";
export { recognise } from "./recognise.ts";
export {
  PUBLISHED_RESIDUAL_PEAKS,
  PUBLISHED_RUNS,
  type PublishedRun,
  RELEASE,
  releasedConfig,
} from "./release.ts";
export {
  type ReleasedEntry,
  type ReleasedShard,
  releasedShard,
  releasedShardCount,
} from "./released-layout.ts";
export { checkStructure, type StructureReport } from "./structure.ts";
export type * from "./types.ts";
