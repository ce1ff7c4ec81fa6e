import { expectedHash, StageError } from "@k3/stage";
import type { FileHash, Hasher } from "./hasher.ts";
import { SEGMENT } from "./part-journal.ts";
import type { PartFile } from "./segments.ts";

const MAX_MISMATCHES = 3;

/**
 * Hashes a part file in order, as far as it is there: behind the connections while they download, so the bytes come
 * from the page cache, and from the disk for what an earlier run left. Each segment must have the CRC-32 that it had when
 * it was received: one that does not (a flipped or torn byte) is taken back and fetched again, alone.
 */
export class Frontier {
  readonly #part: PartFile;
  readonly #hasher: Hasher;
  readonly #onDamage: (segment: number) => void;
  readonly #mismatches = new Map<number, number>();
  readonly #finished: Promise<{ hash: string; crc32: number[] }>;
  #resolve!: (result: { hash: string; crc32: number[] }) => void;
  #reject!: (error: unknown) => void;
  #hash: FileHash | undefined;
  #next = 0;
  #running: Promise<void> | undefined;
  /** A segment was written since the loop last looked. */
  #again = false;
  #stopped = false;

  constructor(part: PartFile, hasher: Hasher, onDamage: (segment: number) => void) {
    this.#part = part;
    this.#hasher = hasher;
    this.#onDamage = onDamage;
    this.#finished = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#finished.catch(() => undefined);
  }

  /** Resolves with the hash of the whole file once every segment is there and has been read. */
  get finished(): Promise<{ hash: string; crc32: number[] }> {
    return this.#finished;
  }

  /** Bytes hashed so far. */
  get position(): number {
    return Math.min(this.#next * this.#part.segmentBytes, this.#part.file.size);
  }

  /** Goes on as far as segments are there. Call it whenever one was written. */
  advance(): void {
    this.#again = true;
    this.#running ??= this.#loop().finally(() => {
      this.#running = undefined;
    });
  }

  /** Ends hashing after the segment at work. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#running;
    await this.#hash?.drop();
    this.#hash = undefined;
  }

  async #loop(): Promise<void> {
    try {
      while (this.#again) {
        this.#again = false;
        await this.#run();
      }
    } catch (error) {
      this.#reject(error);
    }
  }

  async #run(): Promise<void> {
    if (this.#stopped) return;
    const part = this.#part;
    const { algorithm } = expectedHash(part.file);
    this.#hash ??= await this.#hasher.start(part.path, algorithm, part.file.size);
    while (!this.#stopped && this.#next < part.segments) {
      const segment = this.#next;
      if (part.state[segment]! < SEGMENT.written) return;
      const outcome = await this.#hash.read(part.length(segment), part.crc[segment]!);
      if (outcome === "ok") {
        this.#next++;
        continue;
      }
      await this.#damaged(segment);
      return;
    }
    if (this.#stopped) return;
    const hash = this.#hash;
    this.#hash = undefined;
    this.#stopped = true;
    this.#resolve(await hash.finish());
  }

  async #damaged(segment: number): Promise<void> {
    const count = (this.#mismatches.get(segment) ?? 0) + 1;
    this.#mismatches.set(segment, count);
    if (count > MAX_MISMATCHES) {
      throw new StageError(
        "E_DATA",
        `${this.#part.path}: bytes from ${this.#part.start(segment)} on were written ${count} times and read back different each time`,
        { hint: "the disk or the memory of this machine is failing" },
      );
    }
    await this.#part.invalidate([segment]);
    this.#onDamage(segment);
  }
}
