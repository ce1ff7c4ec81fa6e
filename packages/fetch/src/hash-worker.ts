import { createHash, type Hash } from "node:crypto";
import { closeSync, openSync, readSync } from "node:fs";
import { parentPort } from "node:worker_threads";
import { crc32 } from "node:zlib";
import { CHUNK_BYTES } from "@k3/stage";
import type { HashAnswer, HashTask } from "./hasher.ts";

/**
 * The thread that hashes: SHA-256 costs two thirds of a second per gigabyte, which the thread that serves the
 * connections can not spare. It reads files in order with synchronous calls, so it takes no thread of libuv's pool.
 */
interface State {
  path: string;
  fd: number;
  sha: Hash;
  /** CRC-32 of each whole 64 MiB so far, and of the begun one. */
  crcs: number[];
  crc: number;
  position: number;
}

const states = new Map<number, State>();
let buffer: Buffer | undefined;

function perform(task: HashTask): Omit<HashAnswer, "id"> {
  if (task.op === "start") {
    const sha = createHash(task.algorithm === "sha256" ? "sha256" : "sha1");
    // The blob header of git needs only the size, so these files are hashed in a stream as well.
    if (task.algorithm === "git-sha1") sha.update(`blob ${task.size}\0`);
    const fd = openSync(task.path, "r");
    states.set(task.key, { path: task.path, fd, sha, crcs: [], crc: 0, position: 0 });
    return {};
  }
  const state = states.get(task.key);
  if (!state) throw new Error(`no hash of this key: ${task.key}`);
  if (task.op === "read") return readOn(state, task.bytes, task.crc);
  states.delete(task.key);
  closeSync(state.fd);
  if (task.op === "drop") return {};
  if (state.position % CHUNK_BYTES !== 0) state.crcs.push(state.crc);
  return { hash: state.sha.digest("hex"), crc32: state.crcs };
}

/** Hashes the next bytes; when their CRC-32 is not the expected one, the state stays as it was before them. */
function readOn(state: State, bytes: number, expected: number | undefined): Omit<HashAnswer, "id"> {
  const before = { sha: state.sha.copy(), crcs: [...state.crcs], crc: state.crc, position: state.position };
  buffer ??= Buffer.allocUnsafeSlow(1024 * 1024);
  // As a rule a segment is a chunk, and one CRC-32 serves as both.
  const chunkIsSegment = state.position % CHUNK_BYTES === 0 && bytes <= CHUNK_BYTES;
  let crc = 0;
  for (let left = bytes; left > 0; ) {
    const chunkLeft = CHUNK_BYTES - (state.position % CHUNK_BYTES);
    const got = readSync(state.fd, buffer, 0, Math.min(left, buffer.length, chunkLeft), state.position);
    if (got === 0) {
      Object.assign(state, before);
      return { matches: false, ended: true };
    }
    const data = buffer.subarray(0, got);
    state.sha.update(data);
    state.crc = crc32(data, state.crc);
    if (expected !== undefined) crc = chunkIsSegment ? state.crc : crc32(data, crc);
    state.position += got;
    left -= got;
    if (state.position % CHUNK_BYTES === 0) {
      state.crcs.push(state.crc);
      state.crc = 0;
    }
  }
  const matches = expected === undefined || crc === expected;
  if (!matches) Object.assign(state, before);
  return { matches };
}

parentPort?.on("message", (task: HashTask) => {
  let answer: HashAnswer;
  try {
    answer = { id: task.id, ...perform(task) };
  } catch (error) {
    const { message, code } = error as NodeJS.ErrnoException;
    const path = task.op === "start" ? task.path : states.get(task.key)?.path;
    answer = { id: task.id, error: { message, code, path } };
  }
  parentPort!.postMessage(answer);
});
