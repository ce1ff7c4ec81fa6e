import { randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { type FileHandle, open, rm } from "node:fs/promises";
import { join } from "node:path";
import { availableBytes, formatBytes, Meter, StageError, type StageOptions, throwIfAborted } from "@k3/stage";
import { randomSource } from "./statistics.ts";

const BLOCK = 1 << 20;
/** Of the free space a scratch file takes no more than one part in so many. */
const SHARE = 8;

/** A file to read, past the page cache if the filesystem lets us. */
export interface DirectFile {
  handle: FileHandle;
  direct: boolean;
}

export async function openDirect(path: string): Promise<DirectFile> {
  try {
    return { handle: await open(path, constants.O_RDONLY | constants.O_DIRECT), direct: true };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EINVAL") throw error;
    return { handle: await open(path, "r"), direct: false };
  }
}

/**
 * A file on the disk of `dir` to be read, of `wanted` bytes or an eighth of the free space. Its bytes are random, so that
 * neither a hole nor a compressing disk answers instead of the device. It loses its name before it is written: however
 * this process ends, nothing is left of it. Throws E_SPACE where `least` bytes have no room, E_USAGE where nothing can
 * be written.
 */
export async function scratchFile(
  dir: string,
  { wanted, least, signal, onEvent }: StageOptions & { wanted: number; least: number },
): Promise<DirectFile> {
  const free = await availableBytes(dir);
  const blocks = Math.min(Math.ceil(wanted / BLOCK), Math.floor(free / SHARE / BLOCK));
  if (blocks * BLOCK < least) {
    const needed = SHARE * least;
    throw new StageError(
      "E_SPACE",
      `measuring the disk of ${dir} needs ${formatBytes(needed)} (${needed} bytes) free; there are ${formatBytes(free)} (${free} bytes)`,
      { hint: "make room, or give the rate with --disk", details: { needed, available: free } },
    );
  }
  const path = join(dir, `.k3-probe-${randomBytes(8).toString("hex")}`);
  const writer = await open(path, "wx", 0o600).catch((cause: NodeJS.ErrnoException) => {
    throw new StageError(
      "E_USAGE",
      `measuring the disk of ${dir} needs a scratch file there: ${cause.message}`,
      { hint: "give a directory that can be written, or the rate with --disk", cause },
    );
  });
  let reader: DirectFile | undefined;
  try {
    reader = await openDirect(path).finally(() => rm(path));
    await fill(writer, blocks, { signal, onEvent });
    return reader;
  } catch (error) {
    await reader?.handle.close();
    throw error;
  } finally {
    await writer.close();
  }
}

async function fill(handle: FileHandle, blocks: number, { signal, onEvent }: StageOptions): Promise<void> {
  const random = randomSource(1);
  const block = new Float64Array(BLOCK / 8).map(() => random());
  const phase = "writing a scratch file";
  const meter = new Meter({ stage: "doctor", phase, unit: "bytes", total: blocks * BLOCK, onEvent });
  for (let index = 0; index < blocks; index++) {
    throwIfAborted(signal);
    block[0] = index;
    await handle.write(Buffer.from(block.buffer), 0, BLOCK, index * BLOCK);
    meter.add(BLOCK);
  }
  await handle.datasync();
}
