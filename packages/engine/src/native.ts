/** The seam to the addon: what native/options.cc reads and native/addon.cc gives. Nothing else knows these shapes. */

export interface NativeConfig {
  hidden: number;
  layers: number;
  vocab: number;
  rmsNormEps: number;
  attnResBlockSize: number;
  situBeta: number;
  situLinearBeta: number;
  intermediate: number;
  experts: number;
  expertsPerToken: number;
  /** Width of all shared experts as one: their number times the inner width of one; 0 when there are none. */
  sharedInner: number;
  moeInner: number;
  latent: number;
  latentNorm: boolean;
  renormalize: boolean;
  routedScale: number;
  mlaHeads: number;
  qLora: number;
  kvLora: number;
  nope: number;
  rope: number;
  vDim: number;
  mlaGate: boolean;
  kdaHeads: number;
  kdaDim: number;
  kdaConv: number;
  gateLowerBound: number;
  isMla: Uint8Array;
  isMoe: Uint8Array;
}

/**
 * Where all weights are. Every number is checked. The typed arrays are copied in prepare() only: until it is done, neither
 * they nor the properties that hold them may change.
 */
export interface NativeModel {
  config: NativeConfig;
  /** As they were when their headers were read. */
  files: { path: string; size: number; inode: bigint; mtimeNs: bigint }[];
  /** Per tensor: rows, columns, dtype (0 BF16, 1 F32). */
  tensors: Uint32Array;
  /** Per segment: tensor, first row, rows, byte offset in the decoded block. */
  segments: Uint32Array;
  /** Per piece: file, bytes, byte offset in the stored block. */
  pieces: Uint32Array;
  /** Per piece: byte offset in its file. */
  pieceOffsets: Float64Array;
  /** Per block: first segment, segments, first piece, pieces, decoded bytes, CRC-32 of the stored bytes, layer, codec | checked << 8. */
  blocks: Uint32Array;
  /** Per layer, the model level last: the tensor of each role in the order of tensor-roles.ts, 2^32 - 1 where there is none. */
  roles: Uint32Array;
  experts: {
    /** 0 MXFP4, 1 BF16, 2 F32. */
    format: number;
    layers: number;
    experts: number;
    partBytes: Float64Array;
    offsets: Float64Array;
    files: Uint16Array;
  };
  embedding: { file: number; offset: number; dtype: number };
}

interface NativeOptions {
  threads: number;
  /** The most tokens that one pass takes. */
  chunk: number;
  trunkReaders: number;
  ringSlots: number;
  expertReaders: number;
  expertsCached: number;
  expertsInFlight: number;
  /** One byte per block: 1 keeps it in memory once it has been read. */
  pinned: Uint8Array;
  direct: boolean;
  /** [layers with experts][experts]: uses per token in earlier runs, 0 to 1; or empty. */
  census: Float32Array;
  /** How reads are taken to be: 0 as measured, 1 as slow as a disk, 2 as fast as memory. */
  pace: number;
  /** "scalar", "avx2", "avx512", "neon"; empty for the best. */
  isa: string;
}

/** Bytes that the areas of an engine take. */
export interface NativeSizes {
  /** For a chunk of one token, and for each token more. */
  activations: number;
  activationsPerToken: number;
  perWorker: number;
  ringSlot: number;
  expertSlot: number;
  stateFixed: number;
  statePosition: number;
  tables: number;
  /** Per block: its bytes on disk, which a pass owes for it. */
  storedBytes: Uint32Array;
  /** Per block: what it takes in memory when it is pinned. */
  blockBytes: Uint32Array;
}

/** The state of a sequence, in native memory until it is freed or collected. */
export interface NativeState {
  readonly position: number;
  readonly capacity: number;
  /** A pass stopped between its first and last write to it. */
  readonly broken: boolean;
  /** Length of its serialised form. */
  readonly bytes: number;
  setPosition(position: number): boolean;
  serialize(offset: number, into: Uint8Array): boolean;
  deserialize(offset: number, from: Uint8Array): boolean;
  free(): void;
}

export interface NativePass {
  /** Of the last token, or of all tokens, or empty, as asked for. */
  logits: Float32Array;
  /** [layers with experts][tokens][experts per token] when tracing. */
  experts: Uint16Array;
  /** [layers] when tracing: the largest magnitude of the residual stream. */
  layerMax: Float32Array;
}

/** Running totals since the engine was opened, but for `layer`: the one at work. */
export interface NativeStats {
  layer: number;
  trunkBytes: number;
  headBytes: number;
  expertBytes: number;
  embedBytes: number;
  waitNs: number;
  retries: number;
  expertsRequested: number;
  expertsResident: number;
  pinnedBytes: number;
  pinnedResident: number;
  expertsCached: number;
  bufferedFiles: number;
  fastReads: boolean;
}

export const FORWARD_LAST_LOGITS = 1;
export const FORWARD_ALL_LOGITS = 2;
export const FORWARD_TRACE = 4;

export interface NativeEngine {
  /** First: copies the tables and checks every number, off the event loop. Rejects with an Error that has `code`. Once. */
  prepare(): Promise<void>;
  /** Before open: what the areas would take. */
  sizes(): NativeSizes;
  /** Takes the memory, opens the files, starts the threads. Once. */
  open(options: NativeOptions): void;
  /** Rejects with an Error that has `code` and maybe `hint`. */
  forward(state: NativeState, ids: Int32Array, flags: number): Promise<NativePass>;
  copy(to: NativeState, from: NativeState): Promise<void>;
  createState(capacity: number): NativeState;
  /** Frees a state on the engine's thread. */
  release(state: NativeState): Promise<void> | undefined;
  /** Frees everything else there; only close() may follow. */
  freeMemory(): Promise<void> | undefined;
  interrupt(): void;
  stats(): NativeStats;
  /** How often whole passes chose each expert since the last call: [layers with experts][experts]. Before freeMemory(). */
  takeCensus(): { tokens: number; uses: Uint32Array };
  close(): void;
}

export interface NativeAddon {
  /** Throws an Error with `code` for what is missing or of a wrong type. */
  NativeEngine: new (
    model: NativeModel,
  ) => NativeEngine;
  /** The name of the instruction set that a name (or "" for the best) gives; null when it cannot run here. */
  isa(name: string): string | null;
}
