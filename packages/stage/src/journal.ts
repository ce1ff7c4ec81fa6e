import { type FileHandle, open, readFile } from "node:fs/promises";
import { dirname } from "node:path";
import { crc32 } from "node:zlib";
import { syncDirectory } from "./atomic.ts";
import { StageError } from "./errors.ts";

/**
 * An append-only journal of JSON records, one a line, each followed by a space, `#` and the CRC-32 of its JSON text in
 * eight hex digits. A journal is valid up to its last complete record: a torn or damaged line ends it, and what
 * follows is cut off when the journal is opened for writing.
 */
export class Journal {
  readonly path: string;
  readonly #handle: FileHandle;
  #tail: Promise<void> = Promise.resolve();

  private constructor(path: string, handle: FileHandle) {
    this.path = path;
    this.#handle = handle;
  }

  /** Opens or creates a journal; gives the records that are valid, as parsed JSON of unknown shape. */
  static async open(path: string): Promise<{ journal: Journal; records: unknown[] }> {
    const { records, validBytes } = await readJournal(path);
    const handle = await open(path, "a+", 0o644);
    const { size } = await handle.stat();
    if (size > validBytes) await handle.truncate(validBytes);
    await handle.sync();
    await syncDirectory(dirname(path));
    return { journal: new Journal(path, handle), records };
  }

  /**
   * Appends records in the order of the calls. With `durable` (the default) the promise resolves after fdatasync:
   * the caller must have synced the data that the record speaks of before.
   */
  append(record: unknown, { durable = true }: { durable?: boolean } = {}): Promise<void> {
    const line = encodeRecord(record);
    const next = this.#tail.then(async () => {
      await this.#handle.appendFile(line);
      if (durable) await this.#handle.datasync();
    });
    this.#tail = next.catch(() => undefined);
    return next;
  }

  async close(): Promise<void> {
    await this.#tail;
    await this.#handle.close();
  }
}

/** One line of a journal, with its checksum and newline. */
export function encodeRecord(record: unknown): string {
  const text = JSON.stringify(record);
  if (text === undefined) throw new StageError("E_DEFECT", "a journal record must be representable as JSON");
  return `${text} #${crc32(text).toString(16).padStart(8, "0")}\n`;
}

/** The valid records of a journal and how many bytes they take; a file that does not exist has none. */
export async function readJournal(path: string): Promise<{ records: unknown[]; validBytes: number }> {
  let data: Buffer;
  try {
    data = await readFile(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return { records: [], validBytes: 0 };
    throw error;
  }
  const records: unknown[] = [];
  let start = 0;
  for (;;) {
    const end = data.indexOf(0x0a, start);
    if (end < 0) break;
    const record = decodeLine(data.subarray(start, end).toString("utf8"));
    if (record === undefined) break;
    records.push(record.value);
    start = end + 1;
  }
  return { records, validBytes: start };
}

function decodeLine(line: string): { value: unknown } | undefined {
  const match = /^(.*) #([0-9a-f]{8})$/.exec(line);
  if (!match || crc32(match[1]!) !== Number.parseInt(match[2]!, 16)) return undefined;
  try {
    return { value: JSON.parse(match[1]!) };
  } catch {
    return undefined;
  }
}
