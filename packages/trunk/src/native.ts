import { loadNativeAddon } from "@k3/stage";

/** What a BlockJob has done so far. */
export interface JobProgress {
  /** All blocks before this one are done. */
  blocks: number;
  rawBytes: number;
  storedBytes: number;
  /** Of rawBytes: not read, because the source has holes there. */
  holeBytes: number;
  /** The job's threads have ended, well or not. */
  finished: boolean;
}

export interface JobFault {
  what:
    | "open"
    | "read"
    | "short"
    | "write"
    | "sync"
    | "memory"
    | "thread"
    | "stored-crc"
    | "decode"
    | "differs";
  errno: number;
  /** The system's words for errno. */
  message: string;
  block: number;
  path: string;
}

/** The plan of a job as the addon takes it; all arrays are copied. */
export interface NativePlan {
  /** Paths; an empty one where no tensor lies. */
  shards: string[];
  tensorShard: Uint32Array;
  tensorOffset: Float64Array;
  tensorRowBytes: Uint32Array;
  tensorBf16: Uint8Array;
  rawBytes: Uint32Array;
  segmentStart: Uint32Array;
  segmentTensor: Uint32Array;
  segmentFirstRow: Uint32Array;
  segmentByteOffset: Uint32Array;
  segmentBytes: Uint32Array;
  mode: "write" | "measure" | "check";
  output: string;
  bf16: boolean;
  direct: boolean;
  threads: number;
  firstBlock: number;
  firstOffset: number;
  expectedOffset?: Float64Array;
  expectedStored?: Uint32Array;
  expectedCrcStored?: Uint32Array;
  expectedCrcRaw?: Uint32Array;
  expectedCodec?: Uint8Array;
}

export interface NativeJob {
  /** Resolves when the job has finished, or after so many milliseconds. */
  wait(milliseconds: number): Promise<JobProgress>;
  /** Makes durable what is written: afterwards the blocks before `blocks` are on the disk. */
  sync(): Promise<{ blocks: number; errno: number }>;
  cancel(): void;
  error(): JobFault | null;
  /** Stored bytes, CRC-32 of stored and of raw bytes, codec: four numbers for each block from `from` to before `to`. */
  results(from: number, to: number): Uint32Array;
  /** Whether the page cache is bypassed. */
  direct(): { input: boolean; output: boolean };
  /** Stops the job, waits for its threads and closes its files; everything else throws afterwards. */
  close(): void;
}

/** The addon: the codec for one block at a time, and the job that copies many. */
export interface TrunkAddon {
  /** The coded form of bf16 values (an even number of bytes, at most 64 MiB), or null when it would not be smaller. */
  encode(raw: Uint8Array): Uint8Array | null;
  /** The decoded bytes of some chunks of 4096 values (all by default), or null when the block is damaged. */
  decode(stored: Uint8Array, rawBytes: number, firstChunk?: number, chunks?: number): Uint8Array | null;
  /** CRC-32 as in zlib. */
  crc32(bytes: Uint8Array, seed?: number): number;
  /** The instruction set that decoding uses: "scalar", "avx2", "avx512" or "neon". */
  isa(): string;
  /** Switches to another one, in the whole process; false when the processor does not have it. */
  setIsa(name: string): boolean;
  /** The best seconds of some passes over one block, on this thread. */
  bench(what: "encode" | "decode" | "crc32", raw: Uint8Array, repeats: number): number;
  BlockJob: new (plan: NativePlan) => NativeJob;
}

let loaded: TrunkAddon | undefined;

/** Loads the addon at first use. Throws E_CONFIG, naming what was tried and the remedy, when there is none. */
export function trunkAddon(): TrunkAddon {
  loaded ??= loadNativeAddon({
    manifest: new URL("../package.json", import.meta.url),
    name: "@k3/trunk",
    file: "k3_trunk.node",
    buildCommand: "npx k3-trunk-build",
    override: "K3_TRUNK_ADDON",
  }).addon as TrunkAddon;
  return loaded;
}
