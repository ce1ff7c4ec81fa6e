import { closeSync, constants, fstatSync, openSync, read } from "node:fs";
import { promisify } from "node:util";
import { crc32 } from "node:zlib";
import { CHUNK_BYTES, fileIdentity, sameIdentity } from "@k3/stage";
import type { HashedFile, HashTask } from "./hash-pool.ts";

/** Direct reads begin at multiples of this: fit for every disk, those with sectors of 4096 bytes included. */
const PAGE = 4096;

/** 0 on systems that have no such flag: reads are buffered there. */
const O_DIRECT: number = constants.O_DIRECT ?? 0;

const readInto = promisify(read);
const codeOf = (error: unknown) => (error as NodeJS.ErrnoException).code;

/**
 * A file being read from its start to the size it has when it is opened, with the CRC-32 of every 64 MiB. Read past the
 * page cache, if asked for: what is hashed is then what the device gives, not what was written to it a moment ago. Where
 * the filesystem refuses that, in opening or in reading, reads are buffered and `direct` is false.
 */
export class OpenFile {
  direct: boolean;
  readonly #path: string;
  /** The last is the one to read; those before were opened for direct reads that are refused. */
  readonly #fds: number[] = [];
  readonly #before;
  readonly #startedMs = Date.now();
  readonly #crcs: number[] = [];
  #crc = 0;
  #position = 0;

  constructor({ path, direct }: Pick<HashTask, "path" | "direct">) {
    this.#path = path;
    this.direct = direct && O_DIRECT !== 0;
    this.#open();
    this.#before = fileIdentity(fstatSync(this.#fd, { bigint: true }));
  }

  /** Size of the file when it was opened. */
  get size(): number {
    return this.#before.size;
  }

  get #fd(): number {
    return this.#fds.at(-1)!;
  }

  #open(): void {
    try {
      this.#fds.push(openSync(this.#path, constants.O_RDONLY | (this.direct ? O_DIRECT : 0)));
    } catch (error) {
      if (!this.direct || codeOf(error) !== "EINVAL") throw error;
      this.#buffer();
    }
  }

  #buffer(): void {
    this.direct = false;
    this.#open();
  }

  /**
   * Fills `block`, which must be aligned memory, with what stands at `position`, a multiple of its length. Gives the
   * number of bytes: fewer than fit only at the end of the file. Several reads may be under way at once.
   */
  async read(block: Uint8Array, position: number): Promise<number> {
    const wanted = Math.min(block.length, this.size - position);
    let length = 0;
    let most = block.length;
    while (length < wanted) {
      // After a short read it goes on from a whole page.
      const from = length - (length % PAGE);
      const bytes = Math.min(most, block.length - from);
      const got = await this.#readOnce(block.subarray(from, from + bytes), position + from).catch((error) => {
        // A direct read fails as a whole: page by page, the place that cannot be read shows.
        if (codeOf(error) !== "EIO" || bytes <= PAGE) throw error;
        most = PAGE;
        return undefined;
      });
      if (got === undefined) continue;
      if (from + got <= length) break;
      length = from + got;
    }
    return Math.min(length, wanted);
  }

  async #readOnce(place: Uint8Array, position: number): Promise<number> {
    for (;;) {
      const fd = this.#fd;
      try {
        return (await readInto(fd, place, 0, place.length, position)).bytesRead;
      } catch (error) {
        if (codeOf(error) === "EINTR") continue;
        if (codeOf(error) === "EINVAL" && fd !== this.#fd) continue;
        if (codeOf(error) === "EINVAL" && this.direct) this.#buffer();
        else
          throw Object.assign(error as Error, { message: `${(error as Error).message} at byte ${position}` });
      }
    }
  }

  /** Takes the bytes that follow, in their order, into the CRC-32s. Blocks divide the 64 MiB of a CRC-32. */
  add(bytes: Uint8Array): void {
    this.#crc = crc32(bytes, this.#crc);
    this.#position += bytes.length;
    if (this.#position % CHUNK_BYTES === 0) this.#endChunk();
  }

  finish(hash: string): HashedFile {
    const identity = fileIdentity(fstatSync(this.#fd, { bigint: true }));
    if (this.#position % CHUNK_BYTES !== 0) this.#endChunk();
    const changed = !sameIdentity(this.#before, identity) || this.#position !== identity.size;
    const { direct } = this;
    return { hash, crc32: this.#crcs, identity, startedMs: this.#startedMs, direct, changed };
  }

  /** To be called once, when no read is under way: another file could get the descriptor. */
  close(): void {
    for (const fd of this.#fds) closeSync(fd);
  }

  #endChunk(): void {
    this.#crcs.push(this.#crc);
    this.#crc = 0;
  }
}
