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

/** Adds the counts of another census of the same experts. */
export function addCounts(to: ExpertCensus, from: ExpertCensus): void {
  to.tokens += from.tokens;
  for (let i = 0; i < to.uses.length; i++) to.uses[i]! += from.uses[i]!;
}

/** [layers][experts]: uses per token, 0 to 1; empty when nothing was counted. */
export function censusShares({ tokens, uses }: ExpertCensus): Float32Array {
  if (tokens === 0) return new Float32Array(0);
  const shares = new Float32Array(uses.length);
  for (let i = 0; i < uses.length; i++) shares[i] = Math.min(1, uses[i]! / tokens);
  return shares;
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

/** The last save of each file by this process: models that share one take turns. */
const saves = new Map<string, Promise<unknown>>();

/**
 * Adds what was counted to the file, which others may have written since it was read; a file of no use is replaced. When
 * two processes save in the same moment, one of them loses what it counted since its last save.
 */
export function addToCensus(path: string, owner: CensusOwner, counted: ExpertCensus): Promise<void> {
  const saving = (saves.get(path) ?? Promise.resolve()).then(() => add(path, owner, counted));
  const settled = saving.catch(() => undefined);
  saves.set(path, settled);
  return saving;
}

async function add(path: string, owner: CensusOwner, counted: ExpertCensus): Promise<void> {
  if (counted.tokens === 0) return;
  const sum = await readCensus(path, owner).catch((error: unknown) => {
    if (error instanceof StageError && error.code === "E_DATA") return emptyCensus(owner);
    throw error;
  });
  addCounts(sum, counted);
  await mkdir(dirname(path), { recursive: true });
  await writeFileAtomically(path, formatCensus(owner, sum));
}

export function formatCensus(owner: CensusOwner, { tokens, uses }: ExpertCensus): Buffer {
  const halved = 2 ** Math.max(0, Math.ceil(Math.log2(tokens / MOST_TOKENS)));
  const { configSha256, layers, experts } = owner;
  const header: CensusHeader = {
    version: VERSION,
    configSha256,
    layers,
    experts,
    tokens: Math.floor(tokens / halved),
  };
  const json = Buffer.from(JSON.stringify(header));
  const counts = Buffer.alloc(uses.length * 2);
  for (let i = 0; i < uses.length; i++) counts.writeUInt16LE(Math.floor(uses[i]! / halved), i * 2);
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
  const census = emptyCensus(owner);
  census.tokens = header.tokens;
  for (let i = 0; i < census.uses.length; i++) census.uses[i] = bytes.readUInt16LE(end + i * 2);
  // A token chooses an expert once at most.
  if (census.uses.some((uses) => uses > census.tokens)) throw fault(path, "counts more uses than tokens");
  return census;
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
