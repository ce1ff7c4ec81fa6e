import { createHash } from "node:crypto";
import { type FileHandle, open, readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { Random } from "../random.ts";

/** One file of a repository. Its bytes can be asked for in any range; its hashes are computed once, when first asked for. */
export interface HubFile {
  /** Path inside the repository, `/`-separated. */
  readonly path: string;
  readonly size: number;
  /** LFS files carry a SHA-256 and are served by the CDN; plain git files carry a git blob SHA-1. */
  readonly lfs: boolean;
  /** The bytes [start, end) in pieces. A piece stays valid for ever (it is not overwritten by the next one). */
  read(start: number, end: number): AsyncIterable<Uint8Array>;
  /** `onBytes` is told what is read, when this call is the one that computes. */
  hashes(onBytes?: (bytes: number) => void): Promise<FileHashes>;
}

export interface FileHashes {
  /** SHA-256 of the content, for LFS files only. */
  sha256: string | null;
  /** Git blob SHA-1: of the content for plain files, of the LFS pointer for LFS files. */
  oid: string;
}

const READ_BYTES = 512 * 1024;

/** The git blob SHA-1 of `size` bytes: sha1("blob " + size + NUL + bytes). */
export async function gitBlobSha1(
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  size: number,
): Promise<string> {
  const hash = createHash("sha1").update(`blob ${size}\0`);
  for await (const piece of pieces) hash.update(piece);
  return hash.digest("hex");
}

/** The text that git holds in place of an LFS file (git-lfs specification, version 1). */
export function lfsPointer(sha256: string, size: number): string {
  return `version https://git-lfs.github.com/spec/v1\noid sha256:${sha256}\nsize ${size}\n`;
}

abstract class Content implements HubFile {
  readonly path: string;
  readonly size: number;
  readonly lfs: boolean;
  #hashes: Promise<FileHashes> | undefined;

  constructor(path: string, size: number, lfs: boolean) {
    this.path = path;
    this.size = size;
    this.lfs = lfs;
  }

  abstract read(start: number, end: number): AsyncIterable<Uint8Array>;

  hashes(onBytes: (bytes: number) => void = () => {}): Promise<FileHashes> {
    this.#hashes ??= this.#compute(onBytes);
    return this.#hashes;
  }

  protected async sha256(onBytes: (bytes: number) => void): Promise<string> {
    const hash = createHash("sha256");
    for await (const piece of this.read(0, this.size)) {
      hash.update(piece);
      onBytes(piece.length);
    }
    return hash.digest("hex");
  }

  async #compute(onBytes: (bytes: number) => void): Promise<FileHashes> {
    if (!this.lfs) {
      onBytes(this.size);
      return { sha256: null, oid: await gitBlobSha1(this.read(0, this.size), this.size) };
    }
    const sha256 = await this.sha256(onBytes);
    const pointer = Buffer.from(lfsPointer(sha256, this.size));
    return { sha256, oid: await gitBlobSha1([pointer], pointer.length) };
  }
}

class BytesContent extends Content {
  readonly #bytes: Uint8Array;
  constructor(path: string, bytes: Uint8Array, lfs: boolean) {
    super(path, bytes.length, lfs);
    this.#bytes = bytes;
  }
  async *read(start: number, end: number): AsyncIterable<Uint8Array> {
    for (let at = start; at < end; at += READ_BYTES)
      yield this.#bytes.subarray(at, Math.min(end, at + READ_BYTES));
  }
}

/** A file held in memory. `lfs` defaults to the Hub's usual rule: safetensors and anything over 10 MB. */
export function bytesFile(
  path: string,
  content: Uint8Array | string,
  options: { lfs?: boolean } = {},
): HubFile {
  const bytes = typeof content === "string" ? Buffer.from(content, "utf8") : content;
  return new BytesContent(path, bytes, options.lfs ?? isLfs(path, bytes.length, DEFAULT_LFS_BYTES));
}

class DiskContent extends Content {
  readonly #file: string;
  constructor(path: string, file: string, size: number, lfs: boolean) {
    super(path, size, lfs);
    this.#file = file;
  }
  async *read(start: number, end: number): AsyncIterable<Uint8Array> {
    const handle: FileHandle = await open(this.#file, "r");
    try {
      for (let at = start; at < end; ) {
        const piece = Buffer.allocUnsafeSlow(Math.min(READ_BYTES, end - at));
        const { bytesRead } = await handle.read(piece, 0, piece.length, at);
        if (bytesRead === 0) throw new Error(`${this.#file} became shorter while it was served`);
        yield piece.subarray(0, bytesRead);
        at += bytesRead;
      }
    } finally {
      await handle.close();
    }
  }
}

const DEFAULT_LFS_BYTES = 10_000_000;

function isLfs(path: string, size: number, threshold: number): boolean {
  return size > 0 && (size > threshold || path.endsWith(".safetensors"));
}

/**
 * The files of a directory, sorted by path, as a repository would hold them: `*.safetensors` and files over `lfsBytes`
 * are LFS, the others plain. Hidden names (`.cache`, `.git`) are left out, as are our own `.part` files.
 */
export async function directoryFiles(dir: string, options: { lfsBytes?: number } = {}): Promise<HubFile[]> {
  const files: HubFile[] = [];
  const entries = await readdir(dir, { recursive: true, withFileTypes: true });
  for (const entry of entries) {
    const full = join(entry.parentPath, entry.name);
    const path = full.slice(join(dir, "/").length).split("\\").join("/");
    if (path.split("/").some((segment) => segment.startsWith(".")) || path.endsWith(".part")) continue;
    const found = await stat(full);
    if (!found.isFile()) continue;
    files.push(
      new DiskContent(path, full, found.size, isLfs(path, found.size, options.lfsBytes ?? DEFAULT_LFS_BYTES)),
    );
  }
  return files.sort((a, b) => (a.path < b.path ? -1 : 1));
}

const BASE_BYTES = 8 * 2 ** 20;
const BLOCK_BYTES = 2 ** 20;
let base: Buffer | undefined;

/**
 * Synthetic bytes: block k is a window into one fixed random buffer, placed by a hash of (seed, k). Any range of a
 * file of any size is there at once, nothing is stored and nothing is copied.
 */
class SyntheticContent extends Content {
  readonly #seed: number;
  readonly #given: string | undefined;
  constructor(path: string, size: number, seed: number, lfs: boolean, sha256: string | undefined) {
    super(path, size, lfs);
    this.#seed = seed;
    this.#given = sha256;
  }
  async *read(start: number, end: number): AsyncIterable<Uint8Array> {
    base ??= new Random(1, "synthetic").fill(Buffer.allocUnsafeSlow(BASE_BYTES));
    for (let at = start; at < end; ) {
      const block = Math.floor(at / BLOCK_BYTES);
      const inside = at - block * BLOCK_BYTES;
      const length = Math.min(READ_BYTES, BLOCK_BYTES - inside, end - at);
      const window = new Random(this.#seed, `block ${block}`).below(BASE_BYTES - BLOCK_BYTES) + inside;
      yield base.subarray(window, window + length);
      at += length;
    }
  }
  protected override async sha256(onBytes: (bytes: number) => void): Promise<string> {
    return this.#given ?? (await super.sha256(onBytes));
  }
}

/**
 * A file of `size` bytes (gigabytes cost nothing) computed from `seed`. Hashing reads it once, at the speed of SHA-256
 * (10 s for 16 GB); give `sha256` when it is known.
 */
export function syntheticFile(
  path: string,
  size: number,
  options: { seed?: number; lfs?: boolean; sha256?: string } = {},
): HubFile {
  return new SyntheticContent(path, size, options.seed ?? 1, options.lfs ?? size > 0, options.sha256);
}

/** All bytes of a file, for tests that compare with what was downloaded. */
export async function fileBytes(file: HubFile, start = 0, end = file.size): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  for await (const piece of file.read(start, end)) pieces.push(piece);
  return Buffer.concat(pieces);
}
