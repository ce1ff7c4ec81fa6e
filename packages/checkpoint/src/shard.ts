import { createHash } from "node:crypto";
import { type FileHandle, open, stat as statOf } from "node:fs/promises";
import { join } from "node:path";
import { runInSlices } from "@k3/stage";
import { type HeaderFault, MAX_HEADER_BYTES, parseHeaderSteps } from "./header.ts";
import { HeaderTable } from "./header-table.ts";
import { recognise } from "./recognise.ts";
import type { Shard } from "./types.ts";

/** Reads the headers of shard after shard into one buffer and one table. */
export class ShardReader {
  readonly table = new HeaderTable();
  /** Holds the length and the header of a released shard (819 kB) in one read; grows up to MAX_HEADER_BYTES. */
  #buffer = Buffer.allocUnsafe(1 << 20);

  /**
   * The shard's description and the faults of its header; its entries are in `table` until the next call. `shard` is
   * null when the file could not be read as safetensors at all. Throws only what reading an open file throws.
   */
  async read(
    dir: string,
    file: string,
    signal?: AbortSignal,
  ): Promise<{ shard: Shard | null; faults: HeaderFault[] }> {
    this.table.reset(new Uint8Array());
    const path = join(dir, file);
    const unreadable = (found: string) => ({
      shard: null,
      faults: [{ kind: "unreadable" as const, expected: "a readable file", found }],
    });
    let handle: FileHandle;
    try {
      // Looked at before it is opened: opening a pipe would wait for a writer.
      if (!(await statOf(path)).isFile()) return unreadable("something that is not a regular file");
      handle = await open(path, "r");
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      return unreadable(code === "ENOENT" ? "a symbolic link to nowhere" : message);
    }
    try {
      return await this.#readFrom(handle, file, signal);
    } finally {
      await handle.close();
    }
  }

  async #readFrom(
    handle: FileHandle,
    file: string,
    signal?: AbortSignal,
  ): Promise<{ shard: Shard | null; faults: HeaderFault[] }> {
    const { ino: inode, mtimeNs, ...stat } = await handle.stat({ bigint: true });
    const [size, blocks] = [Number(stat.size), Number(stat.blocks)];
    const head = await this.#fill(handle, 0, Math.min(size, this.#buffer.length));
    const fault = recognise(head, size, blocks) ?? checkLength(head, size);
    if (fault) return { shard: null, faults: [fault] };
    const dataStart = 8 + Number(head.readBigUInt64LE(0));
    if (dataStart > this.#buffer.length) {
      const larger = Buffer.allocUnsafe(dataStart);
      head.copy(larger);
      this.#buffer = larger;
    }
    const bytes =
      dataStart <= head.length
        ? head.subarray(0, dataStart)
        : await this.#fill(handle, head.length, dataStart);
    if (bytes.length < dataStart) {
      return {
        shard: null,
        faults: [
          {
            kind: "truncated",
            expected: `${size} bytes`,
            found: `a file that became shorter while it was read`,
          },
        ],
      };
    }
    // The hash first: parsing decodes escapes in place.
    const headerSha256 = createHash("sha256").update(bytes).digest("hex");
    const faults = await runInSlices(
      parseHeaderSteps(bytes.subarray(8), size - dataStart, this.table),
      signal,
    );
    return { shard: { file, size, inode, mtimeNs, dataStart, headerSha256 }, faults };
  }

  /** Reads bytes [from, to) to the same place of the buffer; gives all that is there from 0 on. */
  async #fill(handle: FileHandle, from: number, to: number): Promise<Buffer> {
    let at = from;
    while (at < to) {
      const { bytesRead } = await handle.read(this.#buffer, at, to - at, at);
      if (bytesRead === 0) break;
      at += bytesRead;
    }
    return this.#buffer.subarray(0, at);
  }
}

/** Judges the length prefix before anything is allocated for what it announces. */
function checkLength(head: Buffer, size: number): HeaderFault | undefined {
  const kind = "header-length";
  if (size < 8) return { kind, expected: "8 bytes of header length", found: `a file of ${size} bytes` };
  const length = head.readBigUInt64LE(0);
  if (length > BigInt(size - 8)) {
    return {
      kind,
      expected: `a header of at most ${size - 8} bytes, which follow in the file`,
      found: `a length of ${length}`,
    };
  }
  if (length > BigInt(MAX_HEADER_BYTES)) {
    return {
      kind,
      expected: `a header of at most ${MAX_HEADER_BYTES} bytes`,
      found: `a length of ${length}`,
    };
  }
  if (length < 2n) return { kind, expected: "a header of at least 2 bytes", found: `a length of ${length}` };
  return undefined;
}
