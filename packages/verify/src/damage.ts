import { CHUNK_BYTES, type HashRecord, type Receipt } from "@k3/stage";
import { provesContent } from "./hash-journal.ts";
import type { Proof } from "./hashes.ts";
import type { VerifyFault } from "./types.ts";

/** CRC-32 per chunk of a file when it had its published content: from the receipt, else from the journal. */
export interface Reference {
  receipt: Receipt | undefined;
  /** What the journal knew before this run read the file again. */
  before: Map<string, HashRecord>;
}

/**
 * Which 64 MiB chunks of a file with wrong content are damaged. All of them where nothing is known of its chunks, or
 * when they are as they were (then it never had the published content).
 */
export function locateDamage({ file, record }: Proof, { receipt, before }: Reference): number[] {
  const count = Math.ceil(file.size / CHUNK_BYTES);
  const all = Array.from({ length: count }, (_, chunk) => chunk);
  const sound = [receipt?.files.find((known) => known.path === file.path), before.get(file.path)];
  const good = sound.find((known) => known && provesContent(known, file))?.crc32;
  if (!good || good.length !== count || record?.crc32?.length !== count) return all;
  const damaged = all.filter((chunk) => good[chunk] !== record.crc32![chunk]);
  return damaged.length > 0 ? damaged : all;
}

/** `chunk 3 (bytes 201326592 to 268435455)`, or a list of the chunks with how many there are. */
function describeChunks(chunks: readonly number[], size: number): string {
  const count = Math.ceil(size / CHUNK_BYTES);
  if (chunks.length === count) return count === 1 ? "all of it" : `all ${count} chunks of 64 MiB`;
  if (chunks.length === 1) {
    const start = chunks[0]! * CHUNK_BYTES;
    return `chunk ${chunks[0]} of ${count} (bytes ${start} to ${Math.min(size, start + CHUNK_BYTES) - 1})`;
  }
  const shown = chunks.slice(0, 12).join(", ");
  return `chunks ${shown}${chunks.length > 12 ? ` and ${chunks.length - 12} more` : ""} of ${count}, 64 MiB each`;
}

/** The fault of a file with wrong content, with the place of the damage, which is noted for the receipt. */
export function located({ file, fault }: Proof, chunks: number[], damaged: Receipt["damaged"]): VerifyFault {
  if (chunks.length === 0) return fault!;
  damaged.push({ path: file.path, chunks });
  const whole = chunks.length === Math.ceil(file.size / CHUNK_BYTES);
  if (whole) return fault!;
  return {
    ...fault!,
    kind: "damaged",
    found: `${fault!.found}; damaged is ${describeChunks(chunks, file.size)}`,
  };
}
