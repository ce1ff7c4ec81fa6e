import { join } from "node:path";
import type { Checkpoint, LocatedTensor } from "@k3/checkpoint";
import { StageError, type Steps } from "@k3/stage";
import {
  type BlockLayout,
  layoutSteps,
  requireTrunkOf,
  type Trunk,
  type TrunkTensor,
  tensorRows,
} from "@k3/trunk";
import type { NativeModel } from "./native.ts";
import { nativeConfig } from "./native-config.ts";
import { LAYER_ROLES, NO_TENSOR, roleOf } from "./tensor-roles.ts";

/** Blocks or parts between two pauses: some tenths of a millisecond, several while the code is still cold. */
const STEP = 4096;
/** In the codec's number: the stored bytes have a checksum. */
const CHECKED = 1 << 8;

/**
 * Where every weight of a checkpoint's first `checkpoint.layers` layers is, as the native engine takes it: the trunk's
 * blocks in forward order, from the packed trunk when there is one, else cut from the shards as they are.
 *
 * In steps: the released model has 110,000 blocks and 495,000 expert parts. Throws E_DATA (exit 3) when the trunk was
 * packed from another checkpoint, naming what differs.
 */
export function* buildTables(checkpoint: Checkpoint, trunk?: Trunk, blockBytes?: number): Steps<NativeModel> {
  const files = checkpoint.shards.map(({ file, size, inode, mtimeNs }) => ({
    ...{ path: join(checkpoint.dir, file), size, inode, mtimeNs },
  }));
  const { experts, embed, layers } = checkpoint;
  const used = new Set([embed.shard, ...checkpoint.dense.map(({ shard }) => shard)]);
  for (let part = 0; part < experts.shards.length; part++) {
    used.add(experts.shards[part]!);
    if (part % STEP === 0) yield;
  }
  const dense = trunk
    ? yield* fromTrunk(checkpoint, trunk, files.length, used)
    : yield* fromShards(checkpoint, blockBytes);
  if (trunk) {
    const { dataPath: path, inode, mtimeNs } = trunk;
    files.push({ path, size: trunk.manifest.data.bytes, inode, mtimeNs });
  }
  const renumber = dropUnused(files, used, trunk !== undefined);
  for (let p = 0; p < dense.pieces.length; p += 3) {
    dense.pieces[p] = renumber[dense.pieces[p]!]!;
    if (p % (3 * STEP) === 0) yield;
  }
  const expertFiles = new Uint16Array(experts.shards.length);
  for (let part = 0; part < expertFiles.length; part++) {
    expertFiles[part] = renumber[experts.shards[part]!]!;
    if (part % STEP === 0) yield;
  }
  return {
    config: nativeConfig(checkpoint),
    files: files.filter((_, file) => renumber[file] !== NO_TENSOR),
    ...dense,
    roles: rolesOf(dense.names, layers),
    experts: {
      format: { mxfp4: 0, BF16: 1, F32: 2 }[experts.format],
      layers: experts.layers.length,
      experts: experts.layers.length > 0 ? experts.experts : 0,
      partBytes: Float64Array.from(experts.layers.length > 0 ? experts.partBytes : []),
      offsets: experts.offsets,
      files: expertFiles,
    },
    embedding: { file: renumber[embed.shard]!, offset: embed.offset, dtype: embed.dtype === "F32" ? 1 : 0 },
  };
}

interface DenseTables
  extends Pick<NativeModel, "tensors" | "segments" | "pieces" | "pieceOffsets" | "blocks"> {
  names: { name: string; layer: number | null }[];
}

function* fromShards(checkpoint: Checkpoint, blockBytes: number | undefined): Steps<DenseTables> {
  const { dense, layers } = checkpoint;
  const layout = yield* layoutSteps(dense, blockBytes === undefined ? {} : { blockBytes });
  const rowBytes = dense.map((tensor) => tensorRows(tensor).rowBytes);
  const count = layout.segmentStart[layout.blocks]!;
  const pieces = new Uint32Array(count * 3);
  const pieceOffsets = new Float64Array(count);
  const blocks = new Uint32Array(layout.blocks * 8);
  for (let b = 0; b < layout.blocks; b++) {
    const first = layout.segmentStart[b]!;
    const end = layout.segmentStart[b + 1]!;
    for (let s = first; s < end; s++) {
      const t = layout.segments.tensor[s]!;
      pieces[s * 3] = dense[t]!.shard;
      pieces[s * 3 + 1] = layout.segments.bytes[s]!;
      pieces[s * 3 + 2] = layout.segments.byteOffset[s]!;
      pieceOffsets[s] = dense[t]!.offset + layout.segments.firstRow[s]! * rowBytes[t]!;
    }
    const layer = layerOf(layout, dense, b) ?? layers;
    setBlock(blocks, b, layout, b, {
      firstSegment: first,
      firstPiece: first,
      pieces: end - first,
      layer,
      crc: 0,
      codec: 0,
    });
    if (b % STEP === 0) yield;
  }
  yield;
  return {
    names: dense,
    tensors: tensorTable(dense),
    segments: segmentTable(layout, count),
    pieces,
    pieceOffsets,
    blocks,
  };
}

function* fromTrunk(
  checkpoint: Checkpoint,
  trunk: Trunk,
  file: number,
  used: Set<number>,
): Steps<DenseTables> {
  requireSameSource(checkpoint, trunk, used);
  const { table, manifest } = trunk;
  const wanted = new Map<string, LocatedTensor>(checkpoint.dense.map((tensor) => [tensor.name, tensor]));
  const number = manifest.tensors.map(() => NO_TENSOR);
  const tensors: TrunkTensor[] = [];
  manifest.tensors.forEach((tensor, t) => {
    const source = wanted.get(tensor.name);
    if (!source) return;
    if (
      source.dtype !== tensor.dtype ||
      source.shape.join() !== tensor.shape.join() ||
      source.layer !== tensor.layer
    ) {
      throw mismatch(trunk, `${tensor.name} has another shape or type`);
    }
    wanted.delete(tensor.name);
    number[t] = tensors.push(tensor) - 1;
  });
  for (const missing of wanted.keys()) throw mismatch(trunk, `${missing} is missing`);

  yield;
  // As large as all of it; cut when only the first layers run.
  const segments = new Uint32Array(table.segmentStart[table.blocks]! * 4);
  const pieces = new Uint32Array(table.blocks * 3);
  const pieceOffsets = new Float64Array(table.blocks);
  const blocks = new Uint32Array(table.blocks * 8);
  const { tensor, firstRow, rows, byteOffset } = table.segments;
  let first = 0;
  let n = 0;
  for (let b = 0; b < table.blocks; b++) {
    if (b % STEP === 0) yield;
    const ofLayer = layerOf(table, manifest.tensors, b);
    if (ofLayer !== null && ofLayer >= checkpoint.layers) continue;
    const layer = ofLayer ?? checkpoint.layers;
    const codec = table.codec[b]! | CHECKED;
    setBlock(blocks, n, table, b, {
      firstSegment: first,
      firstPiece: n,
      pieces: 1,
      layer,
      crc: table.crcStored[b]!,
      codec,
    });
    pieces[n * 3] = file;
    pieces[n * 3 + 1] = table.storedBytes[b]!;
    pieceOffsets[n++] = table.offset[b]!;
    for (let s = table.segmentStart[b]!; s < table.segmentStart[b + 1]!; s++, first++) {
      const t = number[tensor[s]!]!;
      if (t === NO_TENSOR) throw mismatch(trunk, `${manifest.tensors[tensor[s]!]!.name} is not in it`);
      setSegment(segments, first, t, firstRow[s]!, rows[s]!, byteOffset[s]!);
    }
  }
  return {
    names: tensors,
    tensors: tensorTable(tensors),
    segments: segments.subarray(0, first * 4),
    pieces: pieces.subarray(0, n * 3),
    pieceOffsets: pieceOffsets.subarray(0, n),
    blocks: blocks.subarray(0, n * 8),
  };
}

/** The trunk and the checkpoint must name the same source, as far as the shards in use go: a partial download runs too. */
function requireSameSource(checkpoint: Checkpoint, trunk: Trunk, used: Set<number>): void {
  const { revision, configSha256, config, layers } = checkpoint;
  const inUse = new Set([...used].map((shard) => checkpoint.shards[shard]!.file));
  const compared = <T extends { file: string }>(shards: readonly T[]): T[] =>
    layers === config.layers ? [...shards] : shards.filter(({ file }) => inUse.has(file));
  const { manifest } = trunk;
  const source = { ...manifest.source, shards: compared(manifest.source.shards) };
  const shards = compared(checkpoint.shards).map(({ file, size, headerSha256 }) => ({
    file,
    size,
    headerSha256,
  }));
  requireTrunkOf({ ...trunk, manifest: { ...manifest, source } }, { revision, configSha256, shards });
}

function mismatch(trunk: Trunk, what: string): StageError {
  return new StageError("E_DATA", `${trunk.dir}: packed from another checkpoint: ${what}`, {
    hint: "pack this checkpoint, or give the directory of its own trunk",
  });
}

const layerOf = (layout: BlockLayout, tensors: readonly { layer: number | null }[], block: number) =>
  tensors[layout.segments.tensor[layout.segmentStart[block]!]!]!.layer;

interface BlockPlace {
  firstSegment: number;
  firstPiece: number;
  pieces: number;
  layer: number;
  crc: number;
  codec: number;
}

/** Row `row` of the block table: block `block` of a layout. */
function setBlock(
  blocks: Uint32Array,
  row: number,
  layout: BlockLayout,
  block: number,
  place: BlockPlace,
): void {
  const at = row * 8;
  blocks[at] = place.firstSegment;
  blocks[at + 1] = layout.segmentStart[block + 1]! - layout.segmentStart[block]!;
  blocks[at + 2] = place.firstPiece;
  blocks[at + 3] = place.pieces;
  blocks[at + 4] = layout.rawBytes[block]!;
  blocks[at + 5] = place.crc;
  blocks[at + 6] = place.layer;
  blocks[at + 7] = place.codec;
}

function setSegment(
  segments: Uint32Array,
  row: number,
  tensor: number,
  firstRow: number,
  rows: number,
  byteOffset: number,
): void {
  segments[row * 4] = tensor;
  segments[row * 4 + 1] = firstRow;
  segments[row * 4 + 2] = rows;
  segments[row * 4 + 3] = byteOffset;
}

function segmentTable(layout: BlockLayout, count: number): Uint32Array {
  const { tensor, firstRow, rows, byteOffset } = layout.segments;
  const table = new Uint32Array(count * 4);
  for (let s = 0; s < count; s++) setSegment(table, s, tensor[s]!, firstRow[s]!, rows[s]!, byteOffset[s]!);
  return table;
}

function tensorTable(tensors: readonly TrunkTensor[]): Uint32Array {
  return Uint32Array.from(
    tensors.flatMap((tensor) => {
      const { rows, rowBytes } = tensorRows(tensor);
      const wide = tensor.dtype === "F32";
      return [rows, rowBytes / (wide ? 4 : 2), wide ? 1 : 0];
    }),
  );
}

function rolesOf(tensors: readonly { name: string; layer: number | null }[], layers: number): Uint32Array {
  const roles = new Uint32Array((layers + 1) * LAYER_ROLES.length).fill(NO_TENSOR);
  tensors.forEach(({ name, layer }, t) => {
    const role = roleOf(name, layer);
    if (role !== undefined) roles[(layer ?? layers) * LAYER_ROLES.length + role] = t;
  });
  return roles;
}

/** New numbers of the files that are read at all; shards of the vision tower, say, are not even opened. */
function dropUnused(files: readonly unknown[], used: Set<number>, lastIsTrunk: boolean): Uint32Array {
  let next = 0;
  return Uint32Array.from(files, (_, file) =>
    used.has(file) || (lastIsTrunk && file === files.length - 1) ? next++ : NO_TENSOR,
  );
}
