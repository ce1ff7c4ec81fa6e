import type { FileHandle } from "node:fs/promises";
import { alignedBuffers, Meter, type StageOptions, throwIfAborted } from "@k3/stage";
import { openDirect, scratchFile } from "./scratch-file.ts";
import { randomSource } from "./statistics.ts";

/** Bytes of one sequential read: a block of the trunk. */
const BLOCK = 1 << 20;
/** Bytes of one scattered read: a routed expert of the released model, rounded up to pages. */
const EXPERT = 17_547_264;
const PAGE = 4096;

export interface DiskProbe {
  /** Bytes per second, over a third of the measuring time each. */
  sequential: number;
  scattered: number;
  /** Both kinds at once in the proportion of a decoded token: about four trunk bytes for one expert byte. */
  mixed: number;
  /** False where the filesystem refused O_DIRECT: then the page cache may answer, and the figures are upper bounds. */
  direct: boolean;
  /** What was read: an existing file of the directory, or a scratch file written for the purpose. */
  readFrom: "shard" | "scratch";
}

export interface ProbeOptions extends StageOptions {
  /** A large file on that disk to read; without one a scratch file is written. */
  file?: string | undefined;
  /** How long to measure, in all. Default 5. */
  seconds?: number;
  /** Size of the scratch file. Default 1 GiB; an eighth of the free space at most. */
  scratchBytes?: number;
}

/**
 * Measures how fast the disk of `dir` gives what decoding needs, never the page cache: 1 MiB reads in order with eight
 * in flight, 17.5 MB reads at random places with four, and both mixed. Reads `file` if given, else a scratch file,
 * which has no name, so that nothing is left of it however the process ends.
 */
export async function probeDisk(
  dir: string,
  { file, seconds = 5, scratchBytes = 2 ** 30, signal, onEvent }: ProbeOptions,
): Promise<DiskProbe> {
  const { handle, direct } = file
    ? await openDirect(file)
    : await scratchFile(dir, { wanted: scratchBytes, least: 2 * EXPERT, signal, onEvent });
  try {
    const size = (await handle.stat()).size;
    const each = (seconds * 1000) / 3;
    const meter = new Meter({
      stage: "doctor",
      phase: "measuring the disk",
      unit: "bytes",
      total: null,
      onEvent,
    });
    const measure = (phase: string, lanes: Lane[]) => {
      meter.phase = phase;
      return throughput(handle, lanes, each, meter, signal);
    };
    return {
      sequential: await measure("measuring reads in order", lanes(size, 8, 0)),
      scattered: await measure("measuring scattered reads", lanes(size, 0, 4)),
      mixed: await measure("measuring both at once", lanes(size, 8, 2)),
      direct,
      readFrom: file ? "shard" : "scratch",
    };
  } finally {
    await handle.close();
  }
}

interface Lane {
  bytes: number;
  next: () => number;
}

function lanes(size: number, sequential: number, scattered: number): Lane[] {
  const random = randomSource(size);
  let cursor = 0;
  const inOrder = () => {
    const at = cursor;
    cursor = cursor + 2 * BLOCK > size ? 0 : cursor + BLOCK;
    return at;
  };
  const large = Math.min(Math.ceil(EXPERT / PAGE) * PAGE, Math.max(PAGE, Math.floor(size / 2 / PAGE) * PAGE));
  const anywhere = () => Math.floor((random() * (size - large)) / PAGE) * PAGE;
  return [
    ...Array.from({ length: sequential }, () => ({ bytes: Math.min(BLOCK, large), next: inOrder })),
    ...Array.from({ length: scattered }, () => ({ bytes: large, next: anywhere })),
  ];
}

/** Bytes per second while every lane reads one piece after another, for `ms` milliseconds. */
async function throughput(
  handle: FileHandle,
  work: readonly Lane[],
  ms: number,
  meter: Meter,
  signal: AbortSignal | undefined,
): Promise<number> {
  let total = 0;
  const started = performance.now();
  await Promise.all(
    work.map(async (lane) => {
      const buffer = alignedBuffers(1, lane.bytes)[0]!;
      while (performance.now() - started < ms) {
        throwIfAborted(signal);
        const { bytesRead } = await handle.read(buffer, 0, lane.bytes, lane.next());
        total += bytesRead;
        meter.add(bytesRead);
      }
    }),
  );
  return total / ((performance.now() - started) / 1000);
}
