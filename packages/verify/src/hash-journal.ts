import { mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import {
  CHUNK_BYTES,
  expectedHash,
  type FileIdentity,
  type HashRecord,
  hashJournalPath,
  hashRecord,
  Journal,
  type Lock,
  lockFile,
  readJournal,
  type SnapshotFile,
  STATE_DIRECTORY,
  sameIdentity,
} from "@k3/stage";

/** A filesystem stamps with the time of the last tick of the kernel's clock: at most 10 ms old (HZ = 100). */
const TICK_NS = 10_000_000n;
const WHOLE_SECOND_NS = 2_000_000_000n;

/**
 * The journal of finished hashes of a directory, which fetch writes as well. Opened for writing under the directory's
 * lock. In a directory that cannot be written to it is only read, and `readOnly` says so.
 */
export class HashJournal {
  readonly readOnly: boolean;
  readonly #records: Map<string, HashRecord>;
  readonly #journal: Journal | undefined;
  readonly #lock: Lock | undefined;

  private constructor(records: unknown[], journal?: Journal, lock?: Lock) {
    this.#records = new Map();
    for (const record of records) {
      const parsed = hashRecord.safeParse(record);
      if (parsed.success) this.#records.set(parsed.data.path, parsed.data);
    }
    this.#journal = journal;
    this.#lock = lock;
    this.readOnly = journal === undefined;
  }

  /** Throws E_LOCKED when fetch or another verify is at work on the directory. */
  static async open(dir: string, key: string): Promise<HashJournal> {
    const path = hashJournalPath(dir, key);
    let lock: Lock | undefined;
    try {
      await mkdir(dirname(path), { recursive: true });
      lock = await lockFile(join(dir, STATE_DIRECTORY, "lock"), "verifying");
      const { journal, records } = await Journal.open(path);
      return new HashJournal(records, journal, lock);
    } catch (error) {
      await lock?.release();
      const { code } = error as NodeJS.ErrnoException;
      if (code !== "EROFS" && code !== "EACCES" && code !== "EPERM") throw error;
      return new HashJournal((await readJournal(path)).records);
    }
  }

  /** The last record of a path whatever the file is now: its CRC-32s tell where a file was damaged since. */
  last(path: string): HashRecord | undefined {
    return this.#records.get(path);
  }

  /** The record of a path, if the file is still the one that was hashed. */
  trusted(path: string, identity: FileIdentity): HashRecord | undefined {
    const record = this.#records.get(path);
    return record && isTrusted(record, identity) ? record : undefined;
  }

  async add(record: HashRecord): Promise<void> {
    this.#records.set(record.path, record);
    await this.#journal?.append(record);
  }

  async close(): Promise<void> {
    await this.#journal?.close();
    await this.#lock?.release();
  }
}

/**
 * Size, times, inode and device are those of the record, and the file was last written to before hashing began: one
 * that was written to within the same tick of the clock could differ without showing it ("racily clean", as git says).
 * Some filesystems keep whole seconds only; there the tick is two of them. A download is its file's only writer.
 */
export function isTrusted(record: HashRecord, identity: FileIdentity): boolean {
  if (!sameIdentity(record.identity, identity)) return false;
  const parts = Math.ceil(identity.size / CHUNK_BYTES);
  if (record.crc32?.length !== parts) return false;
  if (record.how === "download") return true;
  const written = BigInt(identity.mtimeNs);
  const tick = written % 1_000_000_000n === 0n ? WHOLE_SECOND_NS : TICK_NS;
  return written + tick < BigInt(Math.floor(record.startedMs)) * 1_000_000n;
}

/** Whether a record says that a file has the published content. */
export function provesContent(record: Pick<HashRecord, "algorithm" | "hash">, file: SnapshotFile): boolean {
  const { algorithm, hash } = expectedHash(file);
  return record.algorithm === algorithm && record.hash === hash;
}
