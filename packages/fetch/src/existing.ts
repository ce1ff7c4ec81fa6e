import { stat } from "node:fs/promises";
import { localPath } from "@k3/hub";
import {
  CHUNK_BYTES,
  expectedHash,
  type FileIdentity,
  fileIdentity,
  type HashRecord,
  hashJournalPath,
  hashRecord,
  type Receipt,
  readJournal,
  type SnapshotFile,
  StageError,
  sameIdentity,
} from "@k3/stage";
import { hashWhole } from "./hasher.ts";
import { writeHfMetadata } from "./hf-layout.ts";

import { type PublishContext, recordHash } from "./publish.ts";
import type { Run } from "./run.ts";

interface Known {
  identity: FileIdentity;
  hash: string;
  crc32?: number[] | undefined;
  /** Its record, when that is in the journal of another commit only. */
  elsewhere?: HashRecord | undefined;
}

/** What earlier runs of fetch or verify established about the files of a directory, by path. */
export class KnownHashes {
  readonly #known = new Map<string, Known[]>();

  /** `revision` is the commit that the directory is to hold, `before` the one that it held. */
  static async read(dir: string, before: string, revision: string, receipt: Receipt | undefined) {
    const known = new KnownHashes();
    for (const { path, identity, hash, crc32 } of receipt?.files ?? [])
      known.#add(path, { identity, hash, crc32 });
    for (const journaled of new Set([before, revision])) {
      for (const value of (await readJournal(hashJournalPath(dir, journaled))).records) {
        const record = hashRecord.safeParse(value).data;
        if (!record) continue;
        // Touched after hashing began (the racy case of git): the hash may be of other bytes.
        const touchedMs = Number(BigInt(record.identity.mtimeNs) / 1_000_000n);
        if (touchedMs > record.startedMs) continue;
        const { path, identity, hash, crc32 } = record;
        known.#add(path, { identity, hash, crc32, elsewhere: journaled === revision ? undefined : record });
      }
    }
    return known;
  }

  /** What says that these very bytes were hashed before, with the hash that the file must have. */
  vouchFor(file: SnapshotFile, identity: FileIdentity): Known | undefined {
    const { hash } = expectedHash(file);
    const vouching = (this.#known.get(file.path) ?? []).filter(
      (known) => known.hash === hash && sameIdentity(known.identity, identity),
    );
    return vouching.find(({ elsewhere }) => !elsewhere) ?? vouching[0];
  }

  /** The CRC-32 of each 64 MiB of a file with the published hash, if they were ever recorded. */
  chunkCrcs(file: SnapshotFile): number[] | undefined {
    const { hash } = expectedHash(file);
    const chunks = Math.ceil(file.size / CHUNK_BYTES);
    return (this.#known.get(file.path) ?? []).find(
      (known) => known.hash === hash && known.crc32?.length === chunks,
    )?.crc32;
  }

  #add(path: string, known: Known): void {
    this.#known.set(path, [...(this.#known.get(path) ?? []), known]);
  }
}

export interface Stock {
  /** In place with the published hash. */
  present: SnapshotFile[];
  /** To be downloaded. */
  missing: SnapshotFile[];
}

/**
 * Which files are in place already. The size is always compared; a file whose hash was established before and that has not
 * been touched since is not read; any other of the right size is hashed now, whoever put it there.
 */
export async function takeStock(
  run: Run,
  context: PublishContext,
  files: readonly SnapshotFile[],
  known: KnownHashes,
): Promise<Stock> {
  const stock: Stock = { present: [], missing: [] };
  const unknown: SnapshotFile[] = [];
  for (const file of files) {
    const path = localPath(run.settings.dir, file.path);
    const info = await stat(path, { bigint: true }).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT" || error.code === "ENOTDIR" || error.code === "ELOOP") return undefined;
      throw error;
    });
    if (info && !info.isFile()) {
      throw new StageError("E_USAGE", `${path} is not a file, but the repository has a file of that name`, {
        hint: "move it away and run the same command again",
      });
    }
    if (!info || info.size !== BigInt(file.size)) {
      stock.missing.push(file);
      continue;
    }
    const vouching = known.vouchFor(file, fileIdentity(info));
    if (vouching) stock.present.push(file);
    else unknown.push(file);
    if (!vouching?.elsewhere) continue;
    // The next run, verify and hf look under this commit only.
    await context.hashes.append(vouching.elsewhere);
    await writeHfMetadata(context.dir, context.revision, file);
  }
  await hashUnknown(run, context, unknown, stock);
  run.report.resumed += stock.present.reduce((sum, file) => sum + file.size, 0);
  return stock;
}

async function hashUnknown(
  run: Run,
  context: PublishContext,
  files: SnapshotFile[],
  stock: Stock,
): Promise<void> {
  if (files.length === 0) return;
  run.report.log("info", `hashing ${files.length} files that are already here and have not been checked`);
  run.report.begin(
    "hashing files already here",
    files.reduce((sum, file) => sum + file.size, 0),
  );
  for (const file of files) {
    const path = localPath(run.settings.dir, file.path);
    const startedMs = Date.now();
    const result = await hashWhole(run.hasher, path, file, run.signal, (bytes) =>
      run.report.meter.add(bytes),
    );
    if (result?.hash === expectedHash(file).hash) {
      await recordHash(context, file, "read", startedMs, result.crc32);
      await writeHfMetadata(context.dir, context.revision, file);
      stock.present.push(file);
    } else {
      run.report.log("warn", `${file.path} is here with the right size but other content: fetching it again`);
      stock.missing.push(file);
    }
  }
}
