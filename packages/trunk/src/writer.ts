import { open, readdir, rename, stat, unlink } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { StageError, syncDirectory, writeFileAtomically } from "@k3/stage";
import { alignUp, type BlockLayout, type TrunkTensor } from "./layout.ts";
import {
  parseManifest,
  type SourceBinding,
  type TrunkCodec,
  type TrunkManifest,
  trunkId,
} from "./manifest.ts";
import { type BlockTable, encodeTable } from "./table.ts";
import { MANIFEST_FILE } from "./trunk.ts";

/** The data file while it is being written; nothing opens it as a trunk. */
export const PART_FILE = "trunk.part";
const DATA_FILE = /^trunk-[0-9a-f]{16}\.bin$/;
/** What a process leaves that is killed while it writes a file aside. */
const ASIDE = /^trunk\.[a-z.]+\.[0-9a-f]+\.tmp$/;

export interface TrunkContents {
  codec: TrunkCodec;
  blockBytes: number;
  source: SourceBinding;
  tensors: readonly TrunkTensor[];
  layout: BlockLayout;
  /** What BlockJob.results gives for all blocks. */
  results: Uint32Array;
}

/** The block table of blocks that follow each other from offset 0, each at a multiple of 4096. */
export function tableOf(layout: BlockLayout, results: Uint32Array): BlockTable {
  const { blocks } = layout;
  const column = (k: number) => Uint32Array.from({ length: blocks }, (_, b) => results[4 * b + k]!);
  const storedBytes = column(0);
  const offset = new Float64Array(blocks);
  for (let b = 1; b < blocks; b++) offset[b] = alignUp(offset[b - 1]! + storedBytes[b - 1]!);
  return {
    ...layout,
    offset,
    storedBytes,
    crcStored: column(1),
    crcRaw: column(2),
    codec: Uint8Array.from(column(3)),
  };
}

/** The manifest and encoded block table of a trunk. Depends on nothing but the contents. */
export function describeTrunk(contents: TrunkContents): { manifest: TrunkManifest; table: Uint8Array } {
  const { codec, blockBytes, source, tensors, layout, results } = contents;
  const columns = tableOf(layout, results);
  const table = encodeTable(columns);
  const last = layout.blocks - 1;
  const offset = alignUp(columns.offset[last]! + columns.storedBytes[last]!);
  const sum = (values: Uint32Array) => values.reduce((a, b) => a + b, 0);
  const body: Omit<TrunkManifest, "id" | "data"> = {
    format: "k3-trunk",
    version: 1,
    codec,
    blockBytes,
    storedBytes: sum(columns.storedBytes),
    rawBytes: sum(columns.rawBytes),
    table: {
      offset,
      bytes: table.length,
      blocks: layout.blocks,
      segments: layout.segments.tensor.length,
      crc32: crc32(table),
    },
    source: {
      revision: source.revision,
      configSha256: source.configSha256,
      shards: source.shards.map(({ file, size, headerSha256 }) => ({ file, size, headerSha256 })),
    },
    tensors: tensors.map(({ name, dtype, shape, layer }) => ({ name, dtype, shape, layer })),
  };
  const id = trunkId(body);
  const data = { file: `trunk-${id}.bin`, bytes: alignUp(offset + table.length) };
  const { format, version, ...rest } = body;
  return { manifest: { format, version, id, data, ...rest }, table };
}

/**
 * Turns the part file, whose blocks are written and durable, into the trunk of its directory: appends the block table,
 * renames the part to its final name, and renames trunk.json into place last; only then are the data file of an older
 * trunk and the leftovers of killed writers removed, so only one process may be at work on a directory. May be called
 * again after it was interrupted anywhere. Throws E_DATA when the part is gone.
 */
export async function publishTrunk(dir: string, contents: TrunkContents): Promise<TrunkManifest> {
  const { manifest, table } = describeTrunk(contents);
  const path = join(dir, MANIFEST_FILE);
  const text = `${JSON.stringify(manifest, null, 1)}\n`;
  parseManifest(text, path);
  const part = join(dir, PART_FILE);
  const data = join(dir, manifest.data.file);
  if (await exists(part)) {
    const handle = await open(part, "r+");
    try {
      await handle.truncate(manifest.table.offset);
      await handle.truncate(manifest.data.bytes);
      for (let done = 0; done < table.length; ) {
        const { bytesWritten } = await handle.write(
          table,
          done,
          table.length - done,
          manifest.table.offset + done,
        );
        done += bytesWritten;
      }
      await handle.sync();
    } finally {
      await handle.close();
    }
    await rename(part, data);
    await syncDirectory(dir);
  } else if (!(await exists(data))) {
    throw new StageError("E_DATA", `${part} has disappeared while the trunk was written`, {
      hint: "pack it again",
    });
  }
  await writeFileAtomically(path, text);
  await removeLeftovers(dir, manifest);
  return manifest;
}

/**
 * Removes the data files of older trunks and what killed writers left aside, but not an unfinished trunk. Only whoever
 * packs into the directory may call it.
 */
export async function removeLeftovers(dir: string, { data }: TrunkManifest): Promise<void> {
  for (const name of await readdir(dir)) {
    const isOld = DATA_FILE.test(name) && name !== data.file;
    if (isOld || ASIDE.test(name)) await unlink(join(dir, name));
  }
}

async function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return false;
      throw error;
    },
  );
}
