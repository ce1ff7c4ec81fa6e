export { BlockJob, type JobOptions, type SourceTensor } from "./job.ts";
export {
  alignUp,
  BLOCK_BYTES,
  type BlockLayout,
  blockSegments,
  dtypeBytes,
  FILE_ALIGN,
  type LayoutOptions,
  layoutBlocks,
  layoutSteps,
  MAX_BLOCK_BYTES,
  SEGMENT_ALIGN,
  type Segment,
  type Segments,
  type TensorDtype,
  type TrunkTensor,
  tensorRows,
} from "./layout.ts";
export {
  parseManifest,
  type SourceBinding,
  sourceDifferences,
  type TrunkCodec,
  type TrunkManifest,
  trunkId,
} from "./manifest.ts";
export { type JobProgress, type TrunkAddon, trunkAddon } from "./native.ts";
export { type BlockTable, decodeTable, encodeTable } from "./table.ts";
export { MANIFEST_FILE, openTrunk, requireTrunkOf, type Trunk } from "./trunk.ts";
export {
  describeTrunk,
  PART_FILE,
  publishTrunk,
  removeLeftovers,
  type TrunkContents,
  tableOf,
} from "./writer.ts";
