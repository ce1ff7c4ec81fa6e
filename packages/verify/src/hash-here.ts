import { createHash, type Hash } from "node:crypto";
import { alignedBuffers } from "@k3/stage";
import type { HashedFile, HashTask } from "./hash-pool.ts";
import { OpenFile } from "./open-file.ts";

const BUFFER_BYTES = 256 * 1024;

/** The hash of a content of `size` bytes, ready for its first byte: git hashes a header first, which needs only the size. */
export function startHash({ algorithm, size }: Pick<HashTask, "algorithm" | "size">): Hash {
  return algorithm === "sha256" ? createHash("sha256") : createHash("sha1").update(`blob ${size}\0`);
}

export const bufferForHere = () => alignedBuffers(1, BUFFER_BYTES)[0]!;

/** Hashes a file in this thread, which is quicker than a thread of its own when it is small. */
export async function hashHere(task: HashTask, buffer: Uint8Array = bufferForHere()): Promise<HashedFile> {
  const file = new OpenFile(task);
  try {
    const hash = startHash(task);
    for (let position = 0; position < file.size; position += buffer.length) {
      const bytes = buffer.subarray(0, await file.read(buffer, position));
      hash.update(bytes);
      file.add(bytes);
    }
    return file.finish(hash.digest("hex"));
  } finally {
    file.close();
  }
}
