import { join } from "node:path";
import type { Checkpoint, LocatedTensor } from "@k3/checkpoint";
import { StageError } from "@k3/stage";
import {
  type BlockLayout,
  layoutBlocks,
  requireTrunkOf,
  type Trunk,
  type TrunkTensor,
  tensorRows,
} from "@k3/trunk";
import type { NativeConfig, NativeModel } from "./native.ts";
import { LAYER_ROLES, NO_TENSOR, roleOf } from "./tensor-roles.ts";

/** In the codec's number: the stored bytes have a checksum. */
const CHECKED = 1 << 8;

/**
 * Where every weight of a checkpoint's first `checkpoint.layers` layers is, as the native engine takes it: the trunk's
 * blocks in forward order, from the packed trunk when there is one, else cut from the shards as they are.
 *
 * Throws E_DATA (exit 3) when the trunk was packed from another checkpoint, naming what differs.
 */
export function buildTables(checkpoint: Checkpoint, trunk?: Trunk, blockBytes?: number): NativeModel {
  const files = checkpoint.shards.map(({ file, size }) => ({ path: join(checkpoint.dir, file), size }));
  const { experts, embed, layers } = checkpoint;
  const used = new Set([embed.shard, ...checkpoint.dense.map(({ shard }) => shard), ...experts.shards]);
  const dense = trunk ? fromTrunk(checkpoint, trunk, files.length, used) : fromShards(checkpoint, blockBytes);
  if (trunk) files.push({ path: trunk.dataPath, size: trunk.manifest.data.bytes });
  const renumber = dropUnused(files, used, trunk !== undefined);
  for (let p = 0; p < dense.pieces.length; p += 3) dense.pieces[p] = renumber[dense.pieces[p]!]!;
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
      files: experts.shards.map((shard) => renumber[shard]!),
    },
    embedding: { file: renumber[embed.shard]!, offset: embed.offset, dtype: embed.dtype === "F32" ? 1 : 0 },
  };
}

interface DenseTables
  extends Pick<NativeModel, "tensors" | "segments" | "pieces" | "pieceOffsets" | "blocks"> {
  names: { name: string; layer: number | null }[];
}

function fromShards(checkpoint: Checkpoint, blockBytes: number | undefined): DenseTables {
  const { dense, layers } = checkpoint;
  const layout = layoutBlocks(dense, blockBytes === undefined ? {} : { blockBytes });
  const count = layout.segmentStart[layout.blocks]!;
  const pieces = new Uint32Array(count * 3);
  const pieceOffsets = new Float64Array(count);
  const blocks = new Uint32Array(layout.blocks * 8);
  for (let b = 0; b < layout.blocks; b++) {
    const first = layout.segmentStart[b]!;
    const end = layout.segmentStart[b + 1]!;
    for (let s = first; s < end; s++) {
      const tensor = dense[layout.segments.tensor[s]!]!;
      pieces.set([tensor.shard, layout.segments.bytes[s]!, layout.segments.byteOffset[s]!], s * 3);
      pieceOffsets[s] = tensor.offset + layout.segments.firstRow[s]! * tensorRows(tensor).rowBytes;
    }
    const layer = layerOf(layout, dense, b) ?? layers;
    blocks.set(blockRow(layout, b, first, first, end - first, layer, 0, 0), b * 8);
  }
  return {
    names: dense,
    tensors: tensorTable(dense),
    segments: segmentTable(layout, count),
    pieces,
    pieceOffsets,
    blocks,
  };
}

function fromTrunk(checkpoint: Checkpoint, trunk: Trunk, file: number, used: Set<number>): DenseTables {
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

  const chosen = Array.from({ length: table.blocks }, (_, b) => b).filter((b) => {
    const layer = layerOf(table, manifest.tensors, b);
    return layer === null || layer < checkpoint.layers;
  });
  const count = chosen.reduce((sum, b) => sum + table.segmentStart[b + 1]! - table.segmentStart[b]!, 0);
  const segments = new Uint32Array(count * 4);
  const pieces = new Uint32Array(chosen.length * 3);
  const blocks = new Uint32Array(chosen.length * 8);
  let first = 0;
  chosen.forEach((b, n) => {
    const { tensor, firstRow, rows, byteOffset } = table.segments;
    const layer = layerOf(table, manifest.tensors, b) ?? checkpoint.layers;
    blocks.set(blockRow(table, b, first, n, 1, layer, table.crcStored[b]!, table.codec[b]! | CHECKED), n * 8);
    pieces.set([file, table.storedBytes[b]!, 0], n * 3);
    for (let s = table.segmentStart[b]!; s < table.segmentStart[b + 1]!; s++, first++) {
      const t = number[tensor[s]!]!;
      if (t === NO_TENSOR) throw mismatch(trunk, `${manifest.tensors[tensor[s]!]!.name} is not in it`);
      segments.set([t, firstRow[s]!, rows[s]!, byteOffset[s]!], first * 4);
    }
  });
  return {
    names: tensors,
    tensors: tensorTable(tensors),
    segments,
    pieces,
    pieceOffsets: Float64Array.from(chosen, (b) => table.offset[b]!),
    blocks,
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

function blockRow(
  layout: BlockLayout,
  block: number,
  firstSegment: number,
  firstPiece: number,
  pieces: number,
  layer: number,
  crc: number,
  codec: number,
): number[] {
  const segments = layout.segmentStart[block + 1]! - layout.segmentStart[block]!;
  return [firstSegment, segments, firstPiece, pieces, layout.rawBytes[block]!, crc, layer, codec];
}

function segmentTable(layout: BlockLayout, count: number): Uint32Array {
  const { tensor, firstRow, rows, byteOffset } = layout.segments;
  const table = new Uint32Array(count * 4);
  for (let s = 0; s < count; s++) table.set([tensor[s]!, firstRow[s]!, rows[s]!, byteOffset[s]!], s * 4);
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

function nativeConfig({ config: c, layers }: Checkpoint): NativeConfig {
  return {
    hidden: c.hiddenSize,
    layers,
    vocab: c.vocabSize,
    rmsNormEps: c.rmsNormEps,
    attnResBlockSize: c.attnResBlockSize,
    situBeta: c.situBeta,
    situLinearBeta: c.situLinearBeta,
    intermediate: c.intermediateSize,
    experts: c.experts,
    expertsPerToken: c.expertsPerToken,
    sharedInner: c.sharedExperts * c.moeIntermediateSize,
    moeInner: c.moeIntermediateSize,
    latent: c.routedExpertHiddenSize,
    latentNorm: c.latentMoeUseNorm,
    renormalize: c.moeRenormalize,
    routedScale: c.routedScalingFactor,
    mlaHeads: c.mla.heads,
    qLora: c.mla.qLoraRank,
    kvLora: c.mla.kvLoraRank,
    nope: c.mla.qkNopeHeadDim,
    rope: c.mla.qkRopeHeadDim,
    vDim: c.mla.vHeadDim,
    mlaGate: c.mla.outputGate,
    kdaHeads: c.kda.heads,
    kdaDim: c.kda.headDim,
    kdaConv: c.kda.convKernel,
    gateLowerBound: c.kda.gateLowerBound,
    isMla: Uint8Array.from(c.attention.slice(0, layers), (kind) => (kind === "mla" ? 1 : 0)),
    isMoe: Uint8Array.from(c.feedForward.slice(0, layers), (kind) => (kind === "moe" ? 1 : 0)),
  };
}
