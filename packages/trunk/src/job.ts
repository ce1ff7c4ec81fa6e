import { getSystemErrorName } from "node:util";
import { StageError, throwIfAborted } from "@k3/stage";
import { type BlockLayout, type TrunkTensor, tensorRows } from "./layout.ts";
import type { TrunkCodec } from "./manifest.ts";
import { type JobFault, type JobProgress, type NativeJob, type NativePlan, trunkAddon } from "./native.ts";
import type { BlockTable } from "./table.ts";

/** Where a tensor's bytes are. */
export interface SourceTensor extends TrunkTensor {
  shard: number;
  /** Absolute offset in the shard. */
  offset: number;
}

export interface JobOptions {
  /** Path of each shard. */
  shards: string[];
  tensors: readonly SourceTensor[];
  layout: BlockLayout;
  codec: TrunkCodec;
  /** How many threads code at the same time; more of them read and write meanwhile. */
  threads: number;
  /** Bypass the page cache where the filesystem can; true by default. */
  direct?: boolean;
  /** Where to begin, when the blocks before are written already. */
  firstBlock?: number;
  firstOffset?: number;
}

/**
 * A job that works through the blocks of a layout on native threads: "write" codes them into an existing file (which
 * must read as zeros from firstOffset on, for pages of zeros are left out), "measure" codes them and writes nothing,
 * "check" compares a data file with its source. Under 320 MB of buffers.
 */
export class BlockJob {
  readonly #native: NativeJob;

  private constructor(native: NativeJob) {
    this.#native = native;
  }

  static write(options: JobOptions, output: string): BlockJob {
    return BlockJob.#start(options, { mode: "write", output });
  }

  static measure(options: JobOptions): BlockJob {
    return BlockJob.#start(options, { mode: "measure", output: "" });
  }

  static check(options: JobOptions, output: string, table: BlockTable): BlockJob {
    return BlockJob.#start(options, {
      mode: "check",
      output,
      expectedOffset: table.offset,
      expectedStored: table.storedBytes,
      expectedCrcStored: table.crcStored,
      expectedCrcRaw: table.crcRaw,
      expectedCodec: table.codec,
    });
  }

  static #start(
    options: JobOptions,
    plan: Partial<NativePlan> & Pick<NativePlan, "mode" | "output">,
  ): BlockJob {
    const { tensors, layout } = options;
    const used = new Set(tensors.map((tensor) => tensor.shard));
    const { BlockJob: Native } = trunkAddon();
    return new BlockJob(
      new Native({
        shards: options.shards.map((path, s) => (used.has(s) ? path : "")),
        tensorShard: Uint32Array.from(tensors, (t) => t.shard),
        tensorOffset: Float64Array.from(tensors, (t) => t.offset),
        tensorRowBytes: Uint32Array.from(tensors, (t) => tensorRows(t).rowBytes),
        tensorBf16: Uint8Array.from(tensors, (t) => (t.dtype === "BF16" ? 1 : 0)),
        rawBytes: layout.rawBytes,
        segmentStart: layout.segmentStart,
        segmentTensor: layout.segments.tensor,
        segmentFirstRow: layout.segments.firstRow,
        segmentByteOffset: layout.segments.byteOffset,
        segmentBytes: layout.segments.bytes,
        bf16: options.codec === "bf16",
        direct: options.direct ?? true,
        threads: options.threads,
        firstBlock: options.firstBlock ?? 0,
        firstOffset: options.firstOffset ?? 0,
        ...plan,
      }),
    );
  }

  /** Resolves when the job has finished, or after so many milliseconds. */
  wait(milliseconds: number): Promise<JobProgress> {
    return this.#native.wait(milliseconds);
  }

  /**
   * Waits to the end, reporting about four times a second, and leaves the job open. Throws what stopped the job,
   * E_INTERRUPTED for the signal.
   */
  async finish(signal?: AbortSignal, onProgress?: (progress: JobProgress) => void): Promise<JobProgress> {
    const cancel = () => this.cancel();
    signal?.addEventListener("abort", cancel, { once: true });
    try {
      if (signal?.aborted) cancel();
      for (;;) {
        const progress = await this.wait(250);
        onProgress?.(progress);
        if (!progress.finished) continue;
        this.throwIfFailed();
        throwIfAborted(signal);
        return progress;
      }
    } finally {
      signal?.removeEventListener("abort", cancel);
    }
  }

  /** Makes durable what is written and gives how many blocks that are, all of them before any other. */
  async sync(): Promise<number> {
    const { blocks, errno } = await this.#native.sync();
    if (errno !== 0) {
      throw faultError({
        what: "sync",
        errno,
        message: errorName(errno),
        block: blocks,
        path: "the data file",
      });
    }
    return blocks;
  }

  /** Stops after what is being read or written now; `wait` tells when. */
  cancel(): void {
    this.#native.cancel();
  }

  /** Stored bytes, CRC-32 of stored and of raw bytes, codec: four numbers for each block from `from` to before `to`. */
  results(from: number, to: number): Uint32Array {
    return this.#native.results(from, to);
  }

  /** Stops the job, waits for its threads and closes its files. To be called in the end, however that came. */
  close(): void {
    this.#native.close();
  }

  /** Whether reads and writes bypass the page cache, so far. */
  direct(): { input: boolean; output: boolean } {
    return this.#native.direct();
  }

  /** Throws E_READ, E_SPACE, E_DATA, E_MEMORY or what else stopped the job; nothing when nothing did. */
  throwIfFailed(): void {
    const fault = this.#native.error();
    if (fault) throw faultError(fault);
  }
}

function errorName(errno: number): string {
  try {
    return getSystemErrorName(-errno);
  } catch {
    return `error ${errno}`;
  }
}

function faultError(fault: JobFault): StageError {
  const { what, path, block, errno } = fault;
  const name = errorName(errno);
  const reason = `${fault.message} (${name})`;
  const details = { block, path, ...(errno ? { errno: name } : {}) };
  switch (what) {
    case "write":
    case "sync":
      if (name === "ENOSPC" || name === "EDQUOT") {
        return new StageError("E_SPACE", `no space left on the disk of ${path} at block ${block}`, {
          hint: "free some space and run the same command again; what is written so far is kept",
          details,
        });
      }
      return new StageError("E_DATA", `${path}: cannot be written at block ${block}: ${reason}`, { details });
    case "open":
      return new StageError(
        name === "ENOENT" ? "E_DATA" : "E_USAGE",
        `${path}: cannot be opened: ${reason}`,
        { details },
      );
    case "read":
      return new StageError("E_READ", `${path}: cannot be read at block ${block}: ${reason}`, {
        hint: "the disk or the connection to it may be failing; run the same command again to continue",
        details,
      });
    case "short":
      return new StageError("E_DATA", `${path}: ends before the data of block ${block} does`, {
        hint: "the file was cut short: verify the checkpoint",
        details,
      });
    case "stored-crc":
    case "decode":
    case "differs": {
      const words = {
        "stored-crc": "does not match its checksum",
        decode: "cannot be decoded",
        differs: "differs from the checkpoint",
      }[what];
      return new StageError("E_DATA", `${path}: block ${block} ${words}`, {
        hint: "remove trunk.json beside it and pack again; if the checkpoint may be damaged, verify it first",
        details,
      });
    }
    case "memory":
      return new StageError("E_MEMORY", `no memory for the buffers of block ${block}`, { details });
    case "thread":
      return new StageError("E_MEMORY", "the system gives no thread to work with", { details });
  }
}
