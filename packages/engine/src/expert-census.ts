import { mkdir, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { crc32 } from "node:zlib";
import { readRegularFile, STATE_DIRECTORY, StageError, writeFileAtomically } from "@k3/stage";
import { z } from "zod";

/**
 * A census file: 8 bytes "K3CENSUS"; a u32 length and that many bytes of JSON (CensusHeader); a uint16 for every expert of
 * every layer that has experts, [layers][experts]: the tokens that chose it; a CRC-32 (zlib) of everything before it.
 * Little-endian. Of the released model: 165 kB.
 */
const MAGIC = Buffer.from("K3CENSUS");
const VERSION = 1;
/** More tokens than this, and all counts are halved: what was asked for long ago fades, and counts stay below 2^16. */
const MOST_TOKENS = 16_384;
const LARGEST_FILE = 1 << 27;

const headerSchema = z.strictObject({
  version: z.literal(VERSION),
  configSha256: z.string(),
  layers: z.int().positive(),
  experts: z.int().positive(),
  tokens: z.int().nonnegative(),
});

/** Which experts a census counts. */
export interface CensusOwner {
  readonly configSha256: string;
  /** Layers that have experts. */
  readonly layers: number;
  readonly experts: number;
}

/** How often experts were chosen: of `tokens` tokens, `uses[layer * experts + expert]`. */
export interface ExpertCensus {
  tokens: number;
  uses: Uint32Array;
}

/** Where `k3 run` and `k3 chat` keep the census of a checkpoint. */
export const censusPath = (modelDir: string): string => join(modelDir, STATE_DIRECTORY, "expert-census");

export const emptyCensus = ({ layers, experts }: CensusOwner): ExpertCensus => ({
  tokens: 0,
  uses: new Uint32Array(layers * experts),
});

/** [layers][experts]: uses per token, 0 to 1; empty when nothing was counted. */
export function censusShares({ tokens, uses }: ExpertCensus): Float32Array {
  return tokens === 0 ? new Float32Array(0) : Float32Array.from(uses, (count) => Math.min(1, count / tokens));
}

/**
 * Reads a census; an empty one when there is no file. Throws E_DATA when the file is damaged or counts the experts of
 * another model, and as the system does when it cannot be read.
 */
export async function readCensus(path: string, owner: CensusOwner): Promise<ExpertCensus> {
  const info = await stat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return undefined;
    throw error;
  });
  if (!info) return emptyCensus(owner);
  if (info.size > LARGEST_FILE) throw fault(path, "is too large to be one");
  return parseCensus(await readRegularFile(path), owner, path);
}

/** Adds what was counted to the file, which another process may have written meanwhile; a file of no use is replaced. */
export async function addToCensus(path: string, owner: CensusOwner, counted: ExpertCensus): Promise<void> {
  if (counted.tokens === 0) return;
  const before = await readCensus(path, owner).catch((error: unknown) => {
    if (error instanceof StageError && error.code === "E_DATA") return emptyCensus(owner);
    throw error;
  });
  const sum = {
    tokens: before.tokens + counted.tokens,
    uses: before.uses.map((n, i) => n + counted.uses[i]!),
  };
  await mkdir(dirname(path), { recursive: true });
  await writeFileAtomically(path, formatCensus(owner, sum));
}

export function formatCensus(owner: CensusOwner, { tokens, uses }: ExpertCensus): Buffer {
  const shift = Math.max(0, Math.ceil(Math.log2(tokens / MOST_TOKENS)));
  const { configSha256, layers, experts } = owner;
  const header: CensusHeader = { version: VERSION, configSha256, layers, experts, tokens: tokens >>> shift };
  const json = Buffer.from(JSON.stringify(header));
  const counts = Buffer.alloc(uses.length * 2);
  for (const [i, count] of uses.entries()) counts.writeUInt16LE(count >>> shift, i * 2);
  const content = Buffer.concat([MAGIC, u32(json.length), json, counts]);
  return Buffer.concat([content, u32(crc32(content))]);
}

/** Throws E_DATA as readCensus; `path` is for the message. */
export function parseCensus(bytes: Buffer, owner: CensusOwner, path: string): ExpertCensus {
  const start = MAGIC.length + 4;
  if (bytes.length < start + 4 || !bytes.subarray(0, MAGIC.length).equals(MAGIC)) {
    throw fault(path, "is no census of k3");
  }
  if (crc32(bytes.subarray(0, -4)) !== bytes.readUInt32LE(bytes.length - 4)) throw fault(path, "is damaged");
  const end = start + bytes.readUInt32LE(MAGIC.length);
  const header = parseHeader(bytes.subarray(start, end), path);
  if (
    header.configSha256 !== owner.configSha256 ||
    header.layers !== owner.layers ||
    header.experts !== owner.experts
  ) {
    throw fault(path, "counts the experts of another model");
  }
  if (bytes.length !== end + owner.layers * owner.experts * 2 + 4) throw fault(path, "has a wrong length");
  return {
    tokens: header.tokens,
    uses: Uint32Array.from({ length: owner.layers * owner.experts }, (_, i) =>
      bytes.readUInt16LE(end + i * 2),
    ),
  };
}

type CensusHeader = z.infer<typeof headerSchema>;

function parseHeader(bytes: Buffer, path: string): CensusHeader {
  try {
    return headerSchema.parse(JSON.parse(bytes.toString("utf8")));
  } catch (cause) {
    throw fault(path, "has a header that cannot be read", cause);
  }
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value >>> 0);
  return bytes;
}

const fault = (path: string, what: string, cause?: unknown): StageError =>
  new StageError("E_DATA", `${path} ${what}`, {
    hint: "remove it: it only helps the cache",
    ...(cause === undefined ? {} : { cause }),
  });
