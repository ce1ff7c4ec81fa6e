export { parseConfig, readConfig } from "./config.ts";
export { endIdsOf } from "./end-ids.ts";
export { describeFault } from "./fault-list.ts";
export { inventory, MXFP4_GROUP } from "./inventory.ts";
export { type OpenOptions, openCheckpoint } from "./open.ts";
export { checkStructure, type StructureReport } from "./structure.ts";
export type * from "./types.ts";
