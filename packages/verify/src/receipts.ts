import { CHUNK_BYTES, type HashRecord, type Receipt } from "@k3/stage";
import type { Expected } from "./expected.ts";
import { provesContent } from "./hash-journal.ts";
import type { Proof } from "./hashes.ts";

export interface ReceiptParts {
  expected: Expected;
  /** The receipt of an earlier pass over the same commit. */
  receipt: Receipt | undefined;
  proofs: readonly Proof[];
  damaged: Receipt["damaged"];
  /** What the journal knew of each file before this run. */
  before: ReadonlyMap<string, HashRecord>;
}

/**
 * The receipt of a pass. Clean: proof of every file, and nothing in `damaged`. Otherwise `damaged` names the chunks to
 * mend, and a damaged file keeps the proof of what it was, so that later runs can tell its chunks apart.
 */
export function receiptOf({ expected, receipt, proofs, damaged, before }: ReceiptParts): Receipt {
  const files = new Map(damaged.length > 0 ? receipt?.files.map((file) => [file.path, file]) : []);
  for (const { file, record, how, fault } of proofs) {
    const { path } = file;
    const sound = fault
      ? [files.get(path), before.get(path)].find((known) => known && provesContent(known, file))
      : record;
    files.delete(path);
    if (!sound?.crc32) continue;
    const { identity, algorithm, hash, crc32 } = sound;
    // What is mended later was not read by us.
    const direct = !fault && (sound.direct ?? false);
    files.set(path, { path, identity, algorithm, hash, how: fault ? "journal" : how, direct, crc32 });
  }
  return {
    format: "k3-receipt",
    version: 1,
    repo: expected.repo,
    revision: expected.revision,
    chunkBytes: CHUNK_BYTES,
    files: [...files.values()].sort((a, b) => (a.path < b.path ? -1 : 1)),
    damaged,
  };
}
