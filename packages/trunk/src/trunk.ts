import { constants } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { StageError } from "@k3/stage";
import { parseManifest, type SourceBinding, sourceDifferences, type TrunkManifest } from "./manifest.ts";
import { type BlockTable, decodeTable } from "./table.ts";

export const MANIFEST_FILE = "trunk.json";
/** A manifest of the released model takes about 200 kB. */
const MAX_MANIFEST_BYTES = 64 << 20;

/** An opened trunk: everything about it but the blocks themselves. */
export interface Trunk {
  dir: string;
  manifest: TrunkManifest;
  dataPath: string;
  /** Of the data file whose table was read. */
  inode: bigint;
  mtimeNs: bigint;
  table: BlockTable;
}

/**
 * Opens the trunk in a directory: reads and checks trunk.json and the block table, and the size of the data file. The
 * table takes about 8 MB of memory for the released model. Throws E_DATA when there is no finished trunk, when it is
 * truncated, or when anything in it contradicts anything else; nothing is allocated before its size is checked.
 */
export async function openTrunk(dir: string): Promise<Trunk> {
  const path = join(dir, MANIFEST_FILE);
  const manifest = parseManifest(await readManifestText(path), path);
  const dataPath = join(dir, manifest.data.file);
  const handle = await openForReading(dataPath, `which ${path} names`);
  try {
    const { ino: inode, mtimeNs, size } = await handle.stat({ bigint: true });
    if (size !== BigInt(manifest.data.bytes)) {
      throw new StageError("E_DATA", `${dataPath}: ${size} bytes where ${path} says ${manifest.data.bytes}`, {
        hint: "the trunk is truncated or was changed: pack it again",
      });
    }
    const bytes = new Uint8Array(manifest.table.bytes);
    await readFully(handle, bytes, manifest.table.offset, dataPath);
    if (crc32(bytes) !== manifest.table.crc32) {
      throw new StageError("E_DATA", `${dataPath}: the block table does not match its checksum`, {
        hint: "pack the trunk again",
      });
    }
    return { dir, manifest, dataPath, inode, mtimeNs, table: decodeTable(manifest, bytes, dataPath) };
  } finally {
    await handle.close();
  }
}

/**
 * Throws E_DATA, naming every difference, unless the trunk was packed from this checkpoint. A revision that either
 * side does not know is not compared.
 */
export function requireTrunkOf(trunk: Trunk, source: SourceBinding): void {
  const differences = sourceDifferences(trunk.manifest.source, source, { revision: "if known" });
  if (differences.length === 0) return;
  throw new StageError("E_DATA", `${trunk.dir}: packed from another checkpoint: ${differences.join("; ")}`, {
    hint: "pack this checkpoint, or give the directory of its own trunk",
    details: { differences },
  });
}

async function readManifestText(path: string): Promise<string> {
  const handle = await openForReading(path, "so there is no finished trunk here");
  try {
    const { size } = await handle.stat();
    if (size > MAX_MANIFEST_BYTES)
      throw new StageError("E_DATA", `${path}: ${size} bytes are too many for a manifest`);
    const bytes = new Uint8Array(size);
    await readFully(handle, bytes, 0, path);
    return new TextDecoder().decode(bytes);
  } finally {
    await handle.close();
  }
}

async function openForReading(path: string, consequence: string): Promise<FileHandle> {
  let handle: FileHandle;
  try {
    // Not waiting: opening a pipe in the place of the file would never end.
    handle = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    throw new StageError("E_DATA", `${path} does not exist, ${consequence}`, {
      hint: "pack the checkpoint first: k3 pack MODEL_DIR TRUNK_DIR",
      cause: error,
    });
  }
  if ((await handle.stat()).isFile()) return handle;
  await handle.close();
  throw new StageError("E_DATA", `${path}: not a regular file`);
}

async function readFully(
  handle: FileHandle,
  into: Uint8Array,
  position: number,
  path: string,
): Promise<void> {
  for (let done = 0; done < into.byteLength; ) {
    const { bytesRead } = await handle.read(into, done, into.byteLength - done, position + done);
    if (bytesRead === 0)
      throw new StageError("E_DATA", `${path}: ends at ${position + done}, before its own table does`);
    done += bytesRead;
  }
}
