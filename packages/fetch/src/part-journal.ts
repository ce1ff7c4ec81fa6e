import { rm } from "node:fs/promises";
import { join } from "node:path";
import { expectedHash, Journal, type SnapshotFile } from "@k3/stage";
import { z } from "zod";
import { owner } from "./owner.ts";
import { partName } from "./paths.ts";

/** What a segment is: not there, being fetched, written but not yet journaled, or safe. */
export const SEGMENT = { missing: 0, taken: 1, written: 2, durable: 3 } as const;

/** The bytes that are there from the beginning of an unfinished segment. */
export interface Prefix {
  bytes: number;
  /** CRC-32 of them. */
  crc: number;
}

const header = z.object({
  v: z.literal(1),
  path: z.string(),
  size: z.int().nonnegative(),
  hash: z.string(),
  seg: z.int().positive(),
});
type Header = z.infer<typeof header>;

const checksum = z
  .string()
  .regex(/^[0-9a-f]{8}$/)
  .transform((text) => Number.parseInt(text, 16));
const record = z.union([
  /** Segment `s` of `n` bytes is on the disk and has this CRC-32. `a`: it was adopted from another tool. */
  z.object({ s: z.int().nonnegative(), n: z.int().positive(), c: checksum, a: z.boolean().optional() }),
  /** The first `n` bytes of segment `p`, fewer than it has, are on the disk and have this CRC-32. */
  z.object({ p: z.int().nonnegative(), n: z.int().positive(), c: checksum }),
  /** Segment `x` was found damaged and counts as missing. */
  z.object({ x: z.int().nonnegative() }),
  /** A process took over the part file. */
  z.object({ o: owner }),
]);

export function headerOf(file: SnapshotFile, segmentBytes: number): Header {
  return { v: 1, path: file.path, size: file.size, hash: expectedHash(file).hash, seg: segmentBytes };
}

export const segmentRecord = (segment: number, bytes: number, crc: number) => ({
  s: segment,
  n: bytes,
  c: hex8(crc),
});
export const prefixRecord = (segment: number, { bytes, crc }: Prefix) => ({
  p: segment,
  n: bytes,
  c: hex8(crc),
});

/** Why a journal that begins with `found` does not speak of `wanted`; undefined when it does. */
export function headerMismatch(found: unknown, wanted: Header): string | undefined {
  const version = z.object({ v: z.number() }).safeParse(found).data?.v;
  if (version !== undefined && version !== wanted.v) return `its journal has version ${version}`;
  const parsed = header.safeParse(found).data;
  if (!parsed) return "its journal does not say what it is of";
  if (JSON.stringify(parsed) === JSON.stringify(header.parse(wanted))) return undefined;
  return parsed.seg === wanted.seg
    ? "its journal is of another content"
    : "its journal has segments of another size";
}

export interface Replayed {
  /** By segment: missing or durable. */
  state: Uint8Array;
  /** CRC-32 of each durable segment. */
  crc: Uint32Array;
  adopted: Set<number>;
  /** Of missing segments. */
  prefixes: Map<number, Prefix>;
}

/**
 * What the records after the header vouch for, in order: a later one about the same segment overrules. A record of unknown
 * form (of a later version) or one that does not fit the file is passed over; it vouches for nothing.
 */
export function replay(records: readonly unknown[], size: number, segmentBytes: number): Replayed {
  const segments = Math.ceil(size / segmentBytes);
  const length = (segment: number) => Math.min(segmentBytes, size - segment * segmentBytes);
  const state = new Uint8Array(segments);
  const crc = new Uint32Array(segments);
  const adopted = new Set<number>();
  const prefixes = new Map<number, Prefix>();
  for (const raw of records) {
    const entry = record.safeParse(raw).data;
    if (entry === undefined || "o" in entry) continue;
    if ("x" in entry) {
      if (entry.x >= segments) continue;
      state[entry.x] = SEGMENT.missing;
      adopted.delete(entry.x);
      prefixes.delete(entry.x);
    } else if ("p" in entry) {
      if (entry.p >= segments || entry.n >= length(entry.p)) continue;
      if (state[entry.p] === SEGMENT.missing) prefixes.set(entry.p, { bytes: entry.n, crc: entry.c });
    } else if (entry.s < segments && entry.n === length(entry.s)) {
      state[entry.s] = SEGMENT.durable;
      crc[entry.s] = entry.c;
      prefixes.delete(entry.s);
      if (entry.a) adopted.add(entry.s);
    }
  }
  return { state, crc, adopted, prefixes };
}

/** Bytes that a journal vouches for which no process has taken over since its part file was adopted; undefined for any other. */
export function adoptedBytes(records: readonly unknown[]): number | undefined {
  let bytes = 0;
  for (const raw of records.slice(1)) {
    const entry = record.safeParse(raw).data;
    if (entry === undefined || !("s" in entry) || !entry.a) return undefined;
    bytes += entry.n;
  }
  return bytes > 0 ? bytes : undefined;
}

/** The journal of an adopted part file, written at once: its first segments count, with these CRC-32s. */
export async function writeAdoptedJournal(
  directory: string,
  file: SnapshotFile,
  segmentBytes: number,
  crcs: readonly number[],
): Promise<void> {
  const path = join(directory, `${partName(file)}.journal`);
  await rm(path, { force: true }); // of a part file that is not there any more
  const { journal } = await Journal.open(path);
  await journal.append(headerOf(file, segmentBytes));
  for (const [s, crc] of crcs.entries()) {
    const n = Math.min(segmentBytes, file.size - s * segmentBytes);
    await journal.append({ ...segmentRecord(s, n, crc), a: true }, { durable: s === crcs.length - 1 });
  }
  await journal.close();
}

const hex8 = (value: number) => value.toString(16).padStart(8, "0");
