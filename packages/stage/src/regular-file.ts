import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { StageError } from "./errors.ts";

/**
 * The content of a regular file. A directory, a pipe or a device in its place is refused with E_DATA instead of being
 * waited for: opening a pipe that nobody writes to would never end.
 */
export async function readRegularFile(path: string): Promise<Buffer> {
  const handle = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    if (!(await handle.stat()).isFile()) throw new StageError("E_DATA", `${path}: not a regular file`);
    return await handle.readFile();
  } finally {
    await handle.close();
  }
}
