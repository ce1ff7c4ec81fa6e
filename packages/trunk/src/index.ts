export {
  BLOCK_BYTES,
  type BlockLayout,
  blockSegments,
  dtypeBytes,
  layoutBlocks,
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
} from "./manifest.ts";
export { decodeTable, encodeTable } from "./table.ts";
export {
  alignUp,
  type BlockTable,
  FILE_ALIGN,
  MANIFEST_FILE,
  openTrunk,
  requireTrunkOf,
  type Trunk,
  trunkId,
} from "./trunk.ts";
