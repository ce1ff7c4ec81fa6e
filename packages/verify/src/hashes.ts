import { stat } from "node:fs/promises";
import { cpus } from "node:os";
import { recognise } from "@k3/checkpoint";
import { localPath } from "@k3/hub";
import {
  expectedHash,
  fileIdentity,
  type HashRecord,
  Meter,
  type SnapshotFile,
  StageError,
  type StageOptions,
  throwIfAborted,
} from "@k3/stage";
import type { HashJournal } from "./hash-journal.ts";
import { provesContent } from "./hash-journal.ts";
import { type HashedFile, LazyHasher } from "./hash-pool.ts";

import { headOf } from "./sizes.ts";
import type { VerifyFault } from "./types.ts";

export interface HashOptions extends StageOptions {
  dir: string;
  journal: HashJournal;
  jobs: number;
  /** Read everything, whatever the journal knows. */
  recheck: boolean;
}

/** What became known of one file. */
export interface Proof {
  file: SnapshotFile;
  /** The hash of its bytes and how it was established; absent when it could not be read. */
  record?: HashRecord;
  how: "read" | "journal" | "download";
  /** Of a file that was read now: whether past the page cache. */
  direct?: boolean;
  fault?: VerifyFault;
}

export interface HashReport {
  proofs: Proof[];
  bytesRead: number;
  fromJournal: number;
}

/** Whether what was read now was all read past the page cache; false when nothing was. */
export const readDirectly = (proofs: readonly Proof[]): boolean =>
  proofs.some(({ direct }) => direct) && !proofs.some(({ direct }) => direct === false);

/** Hashes files of the right size, `jobs` at a time in the order given, and journals each as it is finished. */
export async function hashFiles(files: readonly SnapshotFile[], options: HashOptions): Promise<HashReport> {
  const { dir, journal, recheck, signal } = options;
  const proofs: Proof[] = [];
  const unread: SnapshotFile[] = [];
  for (const file of files) {
    const known = recheck ? undefined : await fromJournal(dir, journal, file);
    if (known) proofs.push(known);
    else unread.push(file);
  }
  const fromJournal_ = proofs.length;
  const total = files.reduce((sum, { size }) => sum + size, 0);
  const known = proofs.reduce((sum, { file }) => sum + file.size, 0);
  const meter = new Meter({
    stage: "verify",
    phase: "hashing",
    unit: "bytes",
    total,
    initial: known,
    onEvent: options.onEvent,
  });
  meter.emit();
  const heartbeat = setInterval(() => meter.add(0), 500);
  const queue = unread.values();
  let bytesRead = 0;
  const hashers: LazyHasher[] = [];
  const stop = () => void Promise.all(hashers.map((hasher) => hasher.close()));
  signal?.addEventListener("abort", stop, { once: true });
  const work = async () => {
    const hasher = new LazyHasher();
    hashers.push(hasher);
    for (const file of queue) {
      throwIfAborted(signal);
      meter.detail = { file: file.path };
      let told = 0;
      const onBytes = (bytes: number) => {
        told += bytes;
        meter.add(bytes);
      };
      const proof = await hashOne(hasher, file, options, onBytes);
      bytesRead += told;
      // A file that became shorter, or could not be read to its end, is done as well.
      meter.add(file.size - told);
      proofs.push(proof);
    }
  };
  try {
    const jobs = Math.min(options.jobs, unread.length);
    await Promise.all(Array.from({ length: jobs }, work));
    throwIfAborted(signal);
  } catch (error) {
    throwIfAborted(signal);
    throw error;
  } finally {
    signal?.removeEventListener("abort", stop);
    clearInterval(heartbeat);
    await Promise.all(hashers.map((hasher) => hasher.close()));
  }
  meter.detail = {};
  meter.emit();
  proofs.sort((a, b) => (a.file.path < b.file.path ? -1 : 1));
  return { proofs, bytesRead, fromJournal: fromJournal_ };
}

/** The number of files to hash at a time. Throws E_USAGE. */
export function checkedJobs(jobs: number): number {
  const most = Math.max(64, cpus().length);
  if (Number.isInteger(jobs) && jobs >= 1 && jobs <= most) return jobs;
  throw new StageError("E_USAGE", `jobs must be a whole number from 1 to ${most}, not ${jobs}`);
}

async function fromJournal(
  dir: string,
  journal: HashJournal,
  file: SnapshotFile,
): Promise<Proof | undefined> {
  const identity = fileIdentity(await stat(localPath(dir, file.path), { bigint: true }));
  const record = journal.trusted(file.path, identity);
  if (!record || record.algorithm !== expectedHash(file).algorithm) return undefined;
  const how = record.how === "download" ? "download" : "journal";
  if (provesContent(record, file)) return { file, record, how };
  return {
    file,
    record,
    how,
    fault: await wrongContent(dir, file, record.hash, " when it was last read, unchanged since"),
  };
}

async function hashOne(
  hasher: LazyHasher,
  file: SnapshotFile,
  { dir, journal, signal }: HashOptions,
  onBytes: (bytes: number) => void,
): Promise<Proof> {
  const { path, size } = file;
  const full = localPath(dir, path);
  const { algorithm } = expectedHash(file);
  const how = "read";
  let hashed: HashedFile;
  try {
    hashed = await hasher.hash({ path: full, algorithm, size, direct: true }, onBytes);
  } catch (error) {
    throwIfAborted(signal);
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === undefined) throw error;
    return { file, how, fault: { path, kind: "unreadable", expected: "a readable file", found: message } };
  }
  const { changed, ...facts } = hashed;
  const { direct } = facts;
  const after = await stat(full, { bigint: true }).then(fileIdentity, () => undefined);
  if (changed || after?.ino !== facts.identity.ino || facts.identity.size !== size) {
    const fault: VerifyFault = {
      path,
      kind: "changed",
      expected: "a file that nobody writes to",
      found: "one that was changed or replaced while it was read",
    };
    return { file, how, direct, fault };
  }
  const record: HashRecord = { path, algorithm, how, ...facts };
  await journal.add(record);
  if (provesContent(record, file)) return { file, record, how, direct };
  return { file, record, how, direct, fault: await wrongContent(dir, file, record.hash, "") };
}

/** The fault of a file with wrong bytes, called by its name when it is something else altogether. */
async function wrongContent(
  dir: string,
  file: SnapshotFile,
  hash: string,
  when: string,
): Promise<VerifyFault> {
  const { path, size } = file;
  const expected = expectedHash(file);
  const head = await headOf(localPath(dir, path)).catch(() => new Uint8Array([0]));
  const name = recognise(head, size, 1);
  const found = `${expected.algorithm} ${hash}${when}`;
  return {
    path,
    kind: name?.kind ?? "hash",
    expected: `${expected.algorithm} ${expected.hash}`,
    found: name ? `${name.found} (${found})` : found,
  };
}
