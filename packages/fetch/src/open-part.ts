import { type FileHandle, open, stat, unlink } from "node:fs/promises";
import { join } from "node:path";
import { Journal, makeDirectory, readJournal, type SnapshotFile } from "@k3/stage";
import { preallocate } from "./disk.ts";
import { owned, requireDeadOwner, requireFirstLiveOwner, thisProcess } from "./owner.ts";
import { adoptedBytes, headerMismatch, headerOf, type Replayed, replay } from "./part-journal.ts";
import { partName } from "./paths.ts";

/** A part file and its journal, opened for writing, with what the journal vouches for. */
export interface OpenedPart {
  path: string;
  handle: FileHandle;
  journal: Journal;
  replayed: Replayed;
  /** Why what an earlier run left of the file could not be gone on from, if there was something. */
  discarded: string | undefined;
}

/**
 * Opens the part file of a file, or makes it. What an earlier run journaled counts if the journal speaks of the same content
 * and segment size and the part file has its full size; else both start over. Throws E_LOCKED when a live process owns it,
 * E_SPACE.
 */
export async function openPart(
  directory: string,
  file: SnapshotFile,
  segmentBytes: number,
): Promise<OpenedPart> {
  await makeDirectory(directory);
  const path = join(directory, `${partName(file)}.part`);
  const journalPath = join(directory, `${partName(file)}.journal`);
  const head = headerOf(file, segmentBytes);
  const me = await thisProcess();
  const old = await readJournal(journalPath);
  await requireDeadOwner(old.records, me, journalPath, file.path);
  const there = await stat(path).catch(() => undefined);
  const mismatch = headerMismatch(old.records[0], head);
  // Adopted and never opened since: the file is as short as another tool left it.
  const adopted = (there?.size ?? file.size) < file.size ? adoptedBytes(old.records) : undefined;
  const whole = there?.size === file.size || (adopted !== undefined && adopted <= there!.size);
  const valid = mismatch === undefined && whole;
  if (!valid) {
    // The journal goes first: a part file without one is worth nothing, a journal without its part file lies.
    for (const stale of [journalPath, path]) await unlink(stale).catch(ignoreMissing);
  }
  const handle = await open(path, valid ? "r+" : "wx+", 0o644).catch((error: NodeJS.ErrnoException) => {
    // Gone or come since we looked: another process is at work where the lock does nothing.
    if (error.code === "EEXIST" || error.code === "ENOENT") throw owned(file.path, undefined);
    throw error;
  });
  try {
    if (there?.size !== file.size || !valid) await preallocate(handle, path, file.size);
    // Syncs the directory too. The header need not be durable before the first record, which is synced after it.
    const { journal, records } = await Journal.open(journalPath);
    if (!valid) await journal.append(head, { durable: false });
    await journal.append({ o: me }, { durable: false });
    await requireFirstLiveOwner(journalPath, me, file.path);
    const replayed = replay(records.slice(1), file.size, segmentBytes);
    const discarded = !valid && there ? (mismatch ?? "its part file has another size") : undefined;
    return { path, handle, journal, replayed, discarded };
  } catch (error) {
    await handle.close().catch(() => undefined);
    throw error;
  }
}

export function ignoreMissing(error: unknown): void {
  if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
}
