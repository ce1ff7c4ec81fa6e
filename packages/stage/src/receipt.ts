import type { BigIntStats } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { writeFileAtomically } from "./atomic.ts";
import { parseChecked, readOptional, STATE_DIRECTORY } from "./manifest.ts";

/** Bytes covered by one CRC-32 of a receipt, and by one segment of a download. */
export const CHUNK_BYTES = 64 * 1024 * 1024;

export const receiptPath = (dir: string) => join(dir, STATE_DIRECTORY, "verify.json");
/** The journal of finished hashes: fetch writes its entries when it hashes during download, verify reads and extends it. */
export const hashJournalPath = (dir: string, revision: string) =>
  join(dir, STATE_DIRECTORY, "verify", `${revision}.ndjson`);

const identity = z.strictObject({
  size: z.int().nonnegative(),
  /** Nanoseconds since the epoch, inode and device, as decimal strings: they do not fit a double. */
  mtimeNs: z.string(),
  ctimeNs: z.string(),
  ino: z.string(),
  dev: z.string(),
});

/** What tells that a file is still the one that was read: any write or replacement changes it. */
export type FileIdentity = z.infer<typeof identity>;

export function fileIdentity(stat: BigIntStats): FileIdentity {
  return {
    size: Number(stat.size),
    mtimeNs: String(stat.mtimeNs),
    ctimeNs: String(stat.ctimeNs),
    ino: String(stat.ino),
    dev: String(stat.dev),
  };
}

export function sameIdentity(a: FileIdentity, b: FileIdentity): boolean {
  return (
    a.size === b.size &&
    a.mtimeNs === b.mtimeNs &&
    a.ctimeNs === b.ctimeNs &&
    a.ino === b.ino &&
    a.dev === b.dev
  );
}

/** One record of the hash journal: the hash that the bytes of a file were found to have, and which bytes those were. */
export const hashRecord = z.strictObject({
  path: z.string(),
  identity,
  algorithm: z.enum(["sha256", "git-sha1"]),
  hash: z.string(),
  /** "read": hashed from disk; "download": hashed from the bytes handed to the kernel while downloading. */
  how: z.enum(["read", "download"]),
  /** Every byte was read with O_DIRECT, past the page cache. */
  direct: z.boolean().optional(),
  /** Milliseconds since the epoch at which hashing started: a file touched later than this is not trusted. */
  startedMs: z.number(),
  /** CRC-32 of each 64 MiB of the file, in order; the last may be shorter. */
  crc32: z.array(z.int().nonnegative()).optional(),
});
export type HashRecord = z.infer<typeof hashRecord>;

const receiptSchema = z.strictObject({
  format: z.literal("k3-receipt"),
  version: z.literal(1),
  repo: z.string().nullable(),
  revision: z.string().nullable(),
  chunkBytes: z.literal(CHUNK_BYTES),
  files: z.array(
    z.strictObject({
      path: z.string(),
      identity,
      algorithm: z.enum(["sha256", "git-sha1"]),
      hash: z.string(),
      how: z.enum(["read", "download", "journal"]),
      /** The bytes that were hashed, now or when the journal noted it, were all read with O_DIRECT, past the page cache. */
      direct: z.boolean().optional(),
      crc32: z.array(z.int().nonnegative()),
    }),
  ),
  /** Chunks found damaged since the receipt was written; `k3 fetch --repair` fetches just these again. */
  damaged: z.array(z.strictObject({ path: z.string(), chunks: z.array(z.int().nonnegative()) })),
});

/** Proof of a clean verification, `DIR/.cache/k3/verify.json`: every file, its hash, how it was established. */
export type Receipt = z.infer<typeof receiptSchema>;

export async function readReceipt(dir: string): Promise<Receipt | undefined> {
  const path = receiptPath(dir);
  const text = await readOptional(path);
  const hint = "remove it, and `k3 verify` writes it anew";
  return text === undefined
    ? undefined
    : parseChecked(receiptSchema, text, path, "verification receipt", hint);
}

export async function writeReceipt(dir: string, receipt: Receipt): Promise<void> {
  await writeFileAtomically(receiptPath(dir), `${JSON.stringify(receiptSchema.parse(receipt))}\n`);
}
