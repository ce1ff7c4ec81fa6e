import { createHash } from "node:crypto";
import { stat } from "node:fs/promises";
import { join } from "node:path";
import type { Checkpoint } from "@k3/checkpoint";
import { type FileIdentity, fileIdentity, Meter, type StageOptions } from "@k3/stage";
import {
  alignUp,
  BLOCK_BYTES,
  BlockJob,
  type BlockLayout,
  type JobOptions,
  layoutBlocks,
  type SourceBinding,
  type SourceTensor,
  type TrunkCodec,
} from "@k3/trunk";

/** Everything that is known before the first weight is read. */
export interface PackPlan {
  codec: TrunkCodec;
  blockBytes: number;
  layers: number;
  tensors: SourceTensor[];
  layout: BlockLayout;
  source: SourceBinding;
  /** Path of each shard, and what tells that it is still the same file. */
  shards: string[];
  identities: FileIdentity[];
  /** Allocated bytes of each shard: fewer than its size when it has holes. */
  allocated: number[];
  /** Bytes of weights that are packed. */
  sourceBytes: number;
  /** Digest of the tensors and blocks: what a journal's block numbers mean. */
  layoutSha256: string;
}

/** Cuts a checkpoint into blocks and names exactly what it consists of. Reads no weights. */
export async function planPack(
  checkpoint: Checkpoint,
  codec: TrunkCodec,
  blockBytes: number = BLOCK_BYTES,
): Promise<PackPlan> {
  const tensors: SourceTensor[] = checkpoint.dense.map(({ name, dtype, shape, layer, shard, offset }) => ({
    name,
    dtype,
    shape: [...shape],
    layer,
    shard,
    offset,
  }));
  const layout = layoutBlocks(tensors, { blockBytes });
  const shards = checkpoint.shards.map(({ file }) => join(checkpoint.dir, file));
  const stats = await Promise.all(shards.map((path) => stat(path, { bigint: true })));
  return {
    codec,
    blockBytes,
    layers: checkpoint.layers,
    tensors,
    layout,
    source: {
      revision: checkpoint.revision,
      configSha256: checkpoint.configSha256,
      shards: checkpoint.shards.map(({ file, size, headerSha256 }) => ({ file, size, headerSha256 })),
    },
    shards,
    identities: stats.map(fileIdentity),
    allocated: stats.map((s) => Number(s.blocks) * 512),
    sourceBytes: layout.segments.bytes.reduce((a, b) => a + b, 0),
    layoutSha256: createHash("sha256")
      .update(JSON.stringify([tensors, [...layout.rawBytes]]))
      .digest("hex"),
  };
}

/** The job options that all uses of a plan share. */
export function jobOptions(plan: PackPlan, threads: number, direct: boolean): JobOptions {
  const { shards, tensors, layout, codec } = plan;
  return { shards, tensors, layout, codec, threads, direct };
}

/** The largest the data file can become before its table: no block grows. */
export function largestDataBytes(plan: PackPlan): number {
  return plan.layout.rawBytes.reduce((sum, bytes) => sum + alignUp(bytes), 0);
}

/** A layout of every n-th block, so that at most `count` blocks stand for all of them. */
export function sampleBlocks(layout: BlockLayout, count: number): BlockLayout {
  const step = Math.max(1, Math.ceil(layout.blocks / count));
  const chosen = Array.from({ length: Math.ceil(layout.blocks / step) }, (_, i) => i * step);
  const segmentStart = [0];
  const from: number[] = [];
  for (const block of chosen) {
    for (let s = layout.segmentStart[block]!; s < layout.segmentStart[block + 1]!; s++) from.push(s);
    segmentStart.push(from.length);
  }
  const pick = (values: Uint32Array) => Uint32Array.from(from, (s) => values[s]!);
  const { tensor, firstRow, rows, byteOffset, bytes } = layout.segments;
  return {
    blocks: chosen.length,
    rawBytes: Uint32Array.from(chosen, (block) => layout.rawBytes[block]!),
    segmentStart: Uint32Array.from(segmentStart),
    segments: {
      tensor: pick(tensor),
      firstRow: pick(firstRow),
      rows: pick(rows),
      byteOffset: pick(byteOffset),
      bytes: pick(bytes),
    },
  };
}

/**
 * Stored size over raw size, as 64 blocks from all over the checkpoint have it; 1 for codec none.
 */
export async function sampleRatio(
  plan: PackPlan,
  options: JobOptions,
  { signal, onEvent }: StageOptions,
): Promise<number> {
  if (plan.codec === "none") return 1;
  const layout = sampleBlocks(plan.layout, 64);
  const total = layout.rawBytes.reduce((a, b) => a + b, 0);
  const meter = new Meter({ stage: "pack", phase: "estimating the size", unit: "bytes", total, onEvent });
  const job = BlockJob.measure({ ...options, layout });
  try {
    const { rawBytes, storedBytes } = await job.finish(signal, (progress) => meter.set(progress.rawBytes));
    return storedBytes / rawBytes;
  } finally {
    job.close();
  }
}

/**
 * Bytes that the data file will occupy, about: weights times the ratio, less what a sparse source has as holes, which
 * stay holes. Each block adds half a page of alignment, a hole at least a page when it is coded.
 */
export function expectedDiskBytes(plan: PackPlan, ratio: number): number {
  const dense = new Float64Array(plan.shards.length);
  for (const [t, tensor] of plan.tensors.entries()) dense[tensor.shard]! += tensorBytes(plan, t);
  let bytes = plan.layout.blocks * (4096 + 48) + 4096;
  for (const [s, weights] of dense.entries()) {
    const sparse = plan.allocated[s]! < plan.identities[s]!.size;
    bytes += Math.ceil(sparse ? Math.min(weights * ratio, plan.allocated[s]!) : weights * ratio);
  }
  return bytes;
}

function tensorBytes(plan: PackPlan, t: number): number {
  const { dtype, shape } = plan.tensors[t]!;
  return shape.reduce((a, b) => a * b, dtype === "BF16" ? 2 : 4);
}
