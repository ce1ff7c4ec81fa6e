import { createHash } from "node:crypto";
import { parseChecked, StageError } from "@k3/stage";
import { z } from "zod";
import { alignUp } from "./layout.ts";

const hex = (digits: number) => z.string().regex(new RegExp(`^[0-9a-f]{${digits}}$`));
const count = z.int().nonnegative();
/** Enough for fifty times the released model; keeps a hostile manifest from asking for gigabytes. */
const MAX_RECORDS = 1 << 22;

const shardSchema = z.strictObject({
  /** File name inside the model directory. */
  file: z.string().min(1).max(255),
  size: count,
  /** SHA-256 of the length field and the JSON header of the safetensors file. */
  headerSha256: hex(64),
});

const sourceSchema = z.strictObject({
  /** Commit of the snapshot, or null for a directory without one. */
  revision: hex(40).nullable(),
  configSha256: hex(64),
  shards: z.array(shardSchema).max(65_536),
});

/** What a trunk was packed from. */
export type SourceBinding = z.infer<typeof sourceSchema>;

const tensorSchema = z.strictObject({
  name: z.string().min(1).max(512),
  dtype: z.enum(["BF16", "F32"]),
  shape: z.array(z.int().positive()).max(8),
  layer: z.int().nonnegative().nullable(),
});

const manifestSchema = z.strictObject({
  format: z.literal("k3-trunk"),
  version: z.literal(1),
  /** Derived from all the rest, the block table's checksum included: see trunkId. */
  id: hex(16),
  codec: z.enum(["bf16", "none"]),
  /** About how large a decoded block was meant to be. */
  blockBytes: z.int().positive(),
  /** Sums over all blocks. */
  storedBytes: count,
  rawBytes: count,
  data: z.strictObject({ file: z.string(), bytes: count }),
  table: z.strictObject({
    /** Where the table is in the data file. */
    offset: count,
    bytes: count,
    blocks: z.int().positive().max(MAX_RECORDS),
    segments: z.int().positive().max(MAX_RECORDS),
    crc32: z.int().nonnegative().max(0xffff_ffff),
  }),
  source: sourceSchema,
  /** In the order of the first block of each; table records name tensors by their index here. */
  tensors: z.array(tensorSchema).min(1).max(65_536),
});

/** `trunk.json`. */
export type TrunkManifest = z.infer<typeof manifestSchema>;
export type TrunkCodec = TrunkManifest["codec"];

export const BLOCK_RECORD_BYTES = 32;
export const SEGMENT_RECORD_BYTES = 16;

/** Parses trunk.json and checks that its numbers and its id agree with each other. Throws E_DATA naming `where`. */
export function parseManifest(text: string, where: string): TrunkManifest {
  const manifest = parseChecked(manifestSchema, text, where, "trunk manifest");
  const { table, data } = manifest;
  const problem =
    table.bytes !== table.blocks * BLOCK_RECORD_BYTES + table.segments * SEGMENT_RECORD_BYTES
      ? "the size of the block table is not that of its records"
      : table.offset % 4096 !== 0 || data.bytes !== alignUp(table.offset + table.bytes)
        ? "the block table is not the end of the data file"
        : manifest.id !== trunkId(manifest)
          ? "its id does not belong to its content"
          : data.file !== `trunk-${manifest.id}.bin`
            ? "the name of the data file is not that of its id"
            : undefined;
  if (problem) throw new StageError("E_DATA", `${where}: ${problem}`, { hint: "pack the trunk again" });
  return manifest;
}

/** The first 16 hex digits of a digest over everything in the manifest but the id itself and the file it names. */
export function trunkId(manifest: Omit<TrunkManifest, "id" | "data">): string {
  const { format, version, codec, blockBytes, storedBytes, rawBytes, table, source, tensors } = manifest;
  const text = JSON.stringify([
    ...[format, version, codec, blockBytes, storedBytes, rawBytes],
    ...[table.offset, table.bytes, table.blocks, table.segments, table.crc32],
    ...[source.revision, source.configSha256],
    source.shards.map((s) => [s.file, s.size, s.headerSha256]),
    tensors.map((t) => [t.name, t.dtype, t.shape, t.layer]),
  ]);
  return createHash("sha256").update(text).digest("hex").slice(0, 16);
}

/**
 * What differs between two sources, in words, one entry per difference; empty when they are the same. With
 * `revision: "if known"` a revision that is null on one side is not compared.
 */
export function sourceDifferences(
  before: SourceBinding,
  now: SourceBinding,
  options: { revision?: "strict" | "if known" } = {},
): string[] {
  const list: string[] = [];
  const unknown = before.revision === null || now.revision === null;
  if (before.revision !== now.revision && !(unknown && options.revision === "if known")) {
    list.push(`the commit was ${before.revision ?? "unknown"} and is ${now.revision ?? "unknown"}`);
  }
  if (before.configSha256 !== now.configSha256) list.push("config.json is another one");
  const shards = new Map(before.shards.map((shard) => [shard.file, shard]));
  for (const shard of now.shards) {
    const old = shards.get(shard.file);
    shards.delete(shard.file);
    if (!old) list.push(`${shard.file} is new`);
    else if (old.size !== shard.size) list.push(`${shard.file} had ${old.size} bytes and has ${shard.size}`);
    else if (old.headerSha256 !== shard.headerSha256) list.push(`${shard.file} has another header`);
  }
  for (const file of shards.keys()) list.push(`${file} is gone`);
  return list;
}
