import { createHash, type Hash } from "node:crypto";
import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { crc32 } from "node:zlib";
import { CHUNK_BYTES, fileIdentity, sameIdentity } from "@k3/stage";
import type { HashedFile, HashTask } from "./hash-pool.ts";

/** The hash of a content of `size` bytes, ready for its first byte: git hashes a header first, which needs only the size. */
export function startHash({ algorithm, size }: Pick<HashTask, "algorithm" | "size">): Hash {
  return algorithm === "sha256" ? createHash("sha256") : createHash("sha1").update(`blob ${size}\0`);
}

/** Hashes a file in this thread, which is quicker than a thread of its own when it is small. */
export function hashHere(task: HashTask): HashedFile {
  const file = new OpenFile(task.path);
  try {
    const hash = startHash(task);
    const buffer = new ArrayBuffer(256 * 1024);
    for (let length = file.next(buffer); length > 0; length = file.next(buffer)) {
      hash.update(new Uint8Array(buffer, 0, length));
    }
    return file.finish(hash.digest("hex"));
  } catch (error) {
    file.close();
    throw error;
  }
}

/** A file being read from its start to its end, with the CRC-32 of every 64 MiB. */
export class OpenFile {
  readonly #fd: number;
  readonly #before;
  readonly #startedMs = Date.now();
  readonly #crcs: number[] = [];
  #crc = 0;
  #position = 0;
  unreported = 0;
  ended = false;

  constructor(path: string) {
    this.#fd = openSync(path, "r");
    this.#before = fileIdentity(fstatSync(this.#fd, { bigint: true }));
  }

  /** Fills the buffer with what follows; 0 at the end of the file. Buffers divide the 64 MiB of a CRC-32. */
  next(buffer: ArrayBuffer): number {
    const bytes = new Uint8Array(buffer);
    let length = 0;
    while (length < bytes.length) {
      const got = readSync(this.#fd, bytes, length, bytes.length - length, this.#position + length);
      if (got === 0) break;
      length += got;
    }
    if (length === 0) {
      this.ended = true;
      return 0;
    }
    this.#crc = crc32(bytes.subarray(0, length), this.#crc);
    this.#position += length;
    this.unreported += length;
    if (this.#position % CHUNK_BYTES === 0) this.#endChunk();
    return length;
  }

  report(): number {
    const bytes = this.unreported;
    this.unreported = 0;
    return bytes;
  }

  finish(hash: string): HashedFile {
    const identity = fileIdentity(fstatSync(this.#fd, { bigint: true }));
    this.close();
    if (this.#position % CHUNK_BYTES !== 0) this.#endChunk();
    const changed = !sameIdentity(this.#before, identity) || this.#position !== identity.size;
    return { hash, crc32: this.#crcs, identity, startedMs: this.#startedMs, changed };
  }

  close(): void {
    closeSync(this.#fd);
  }

  #endChunk(): void {
    this.#crcs.push(this.#crc);
    this.#crc = 0;
  }
}
