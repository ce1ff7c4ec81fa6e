import { rename, stat } from "node:fs/promises";
import { dirname } from "node:path";
import { localPath } from "@k3/hub";
import {
  expectedHash,
  fileIdentity,
  type HashRecord,
  type Journal,
  makeDirectory,
  renameDurably,
  type SnapshotFile,
  StageError,
} from "@k3/stage";
import type { DiskQueue } from "./disk.ts";
import { writeHfMetadata } from "./hf-layout.ts";

import type { PartFile } from "./segments.ts";

export interface PublishContext {
  dir: string;
  revision: string;
  /** The hash journal that verify reads. */
  hashes: Journal;
  disk: DiskQueue;
  /** CRC-32s of the files published by this run, by path. */
  published: Map<string, number[]>;
}

/**
 * Puts a finished part file into place: everything synced, renamed, both directories synced, and only then the records
 * that say so, for verify (the CRC-32s included) and for `hf`. A kill at any point leaves a state that the next run
 * takes for what it is.
 */
export async function publish(
  context: PublishContext,
  part: PartFile,
  { crc32 }: { crc32: number[] },
): Promise<void> {
  const target = localPath(context.dir, part.file.path);
  await part.sync();
  await part.close();
  await context.disk.sync(() => moveIntoPlace(context, part, target, crc32));
}

async function moveIntoPlace(
  context: PublishContext,
  part: PartFile,
  target: string,
  crc32: number[],
): Promise<void> {
  await makeTargetDirectory(dirname(target));
  // All of it was written before this moment: a file touched later is not the one that was hashed.
  const startedMs = Date.now();
  try {
    await renameDurably(part.path, target);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "EISDIR" && code !== "ENOTEMPTY") throw error;
    throw new StageError("E_USAGE", `${target} is a directory, but the repository has a file of that name`);
  }
  await recordHash(context, part.file, "download", startedMs, crc32);
  context.published.set(part.file.path, crc32);
  await writeHfMetadata(context.dir, context.revision, part.file);
  await part.discardJournal();
}

/** Writes that a file in place has the published hash. The identity is taken now, after any rename. */
export async function recordHash(
  context: PublishContext,
  file: SnapshotFile,
  how: HashRecord["how"],
  startedMs: number,
  crc32: number[],
): Promise<void> {
  const identity = fileIdentity(await stat(localPath(context.dir, file.path), { bigint: true }));
  const record: HashRecord = {
    path: file.path,
    identity,
    ...expectedHash(file),
    how,
    startedMs,
    crc32,
  };
  await context.hashes.append(record);
}

/** Keeps a file whose source is bad for inspection, out of the way of the next run. */
export async function quarantine(part: PartFile): Promise<void> {
  await part.close();
  await rename(part.path, part.path.replace(/\.part$/, ".bad"));
  await part.discardJournal();
}

async function makeTargetDirectory(path: string): Promise<void> {
  try {
    await makeDirectory(path);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "EEXIST" && code !== "ENOTDIR") throw error;
    throw new StageError(
      "E_USAGE",
      `${path} cannot be made: a file is where the repository has a directory`,
      {
        hint: "move that file away and run the same command again",
      },
    );
  }
}
