import { constants } from "node:fs";
import { type FileHandle, open, unlink } from "node:fs/promises";
import { crc32 } from "node:zlib";
import { renameDurably, StageError } from "@k3/stage";
import { z } from "zod";
import type { NativeState } from "./native.ts";
import { asidePath } from "./state-aside.ts";

/**
 * A state file: 8 bytes "K3STATE" and a newline; a u32 length and that many bytes of JSON (StateHeader); the state as
 * native/session_state.cc lays it out, `stateBytes` long; `logits` float32 values of the last position; a CRC-32 (zlib) of
 * everything before it. Little-endian. Written aside, synced, renamed.
 */
const MAGIC = Buffer.from("K3STATE\n");
/** Raised when the layout of the state changes; files of another version are refused. */
const VERSION = 1;
const CHUNK = 1 << 20;
const MAX_HEADER = 1 << 28;

const headerSchema = z.strictObject({
  version: z.literal(VERSION),
  configSha256: z.string(),
  revision: z.string().nullable(),
  layers: z.int().positive(),
  /** The codec of the trunk that was in use; for people only: the same bits come from every trunk and from none. */
  trunk: z.string(),
  /** Ids that went through the model, then those that are pending. */
  ids: z.array(z.int().nonnegative()),
  position: z.int().nonnegative(),
  stateBytes: z.int().nonnegative(),
  logits: z.int().nonnegative(),
});

/** What a state belongs to. */
export interface StateOwner {
  readonly configSha256: string;
  readonly revision: string | null;
  readonly layers: number;
  readonly trunk: { readonly codec: string };
  readonly config: { readonly vocabSize: number };
}

export interface StateContent {
  state: NativeState;
  ids: readonly number[];
  logits: Float32Array | null;
}

/** Writes a state file. Throws E_SPACE on a full disk; the file that was there before is then untouched. */
export async function saveState(path: string, owner: StateOwner, content: StateContent): Promise<void> {
  const { state, ids, logits } = content;
  const header = Buffer.from(
    JSON.stringify({
      version: VERSION,
      configSha256: owner.configSha256,
      revision: owner.revision,
      layers: owner.layers,
      trunk: owner.trunk.codec,
      ids,
      position: state.position,
      stateBytes: state.bytes,
      logits: logits?.length ?? 0,
    }),
  );
  const aside = asidePath(path);
  const file = await open(aside, "w");
  try {
    const writer = new CheckedFile(file);
    await writer.write(MAGIC);
    await writer.write(u32(header.length));
    await writer.write(header);
    const chunk = Buffer.alloc(Math.min(CHUNK, state.bytes));
    for (let at = 0; at < state.bytes; at += CHUNK) {
      const part = chunk.subarray(0, Math.min(CHUNK, state.bytes - at));
      if (!state.serialize(at, part))
        throw new StageError("E_DEFECT", "the state changed while it was saved");
      await writer.write(part);
    }
    if (logits) await writer.write(Buffer.from(logits.buffer, logits.byteOffset, logits.byteLength));
    await writer.write(u32(writer.crc));
    await file.sync();
    await file.close();
    await renameDurably(aside, path);
  } catch (error) {
    await file.close().catch(() => undefined);
    await unlink(aside).catch(() => undefined);
    throw error;
  }
}

/** What a state file says about itself. Throws E_DATA when it is no state file of this version. */
export async function readStateHeader(path: string): Promise<StateHeader> {
  const file = await openState(path);
  try {
    return await headerOf(new CheckedFile(file), (await file.stat()).size, path);
  } finally {
    await file.close();
  }
}

async function headerOf(reader: CheckedFile, size: number, path: string): Promise<StateHeader> {
  if (!(await reader.read(MAGIC.length, size, path)).equals(MAGIC)) throw fault(path, "is not a state of k3");
  const headerBytes = (await reader.read(4, size, path)).readUInt32LE();
  if (headerBytes > MAX_HEADER) throw fault(path, "has a header of an impossible length");
  return parseHeader(await reader.read(headerBytes, size, path), path);
}

/** Fills a state from a file; see Session.load for the errors. After an error the state is empty. */
export async function loadState(
  path: string,
  owner: StateOwner,
  state: NativeState,
): Promise<{ ids: number[]; logits: Float32Array | null }> {
  let file: FileHandle | undefined;
  try {
    file = await openState(path);
    const { size } = await file.stat();
    const reader = new CheckedFile(file);
    const header = await headerOf(reader, size, path);
    requireOwner(header, owner, path);
    if (header.position > state.capacity) {
      throw new StageError(
        "E_USAGE",
        `${path}: ${header.position} positions do not fit into the context of ${state.capacity}`,
        {
          hint: "open the model with a larger contextTokens",
        },
      );
    }
    state.setPosition(header.position);
    const expected = reader.position + header.stateBytes + header.logits * 4 + 4;
    if (state.bytes !== header.stateBytes || size !== expected) {
      throw fault(path, `has ${size} bytes where ${expected} are due`);
    }
    for (let at = 0; at < header.stateBytes; at += CHUNK) {
      const part = await reader.read(Math.min(CHUNK, header.stateBytes - at), size, path);
      if (!state.deserialize(at, part)) throw fault(path, "does not fit the model");
    }
    const logits = new Float32Array(header.logits);
    Buffer.from(logits.buffer).set(await reader.read(header.logits * 4, size, path));
    const { crc } = reader;
    if ((await reader.read(4, size, path)).readUInt32LE() !== crc)
      throw fault(path, "is damaged: its checksum is wrong");
    return { ids: header.ids, logits: header.logits > 0 ? logits : null };
  } catch (error) {
    state.setPosition(0);
    throw error;
  } finally {
    await file?.close();
  }
}

async function openState(path: string): Promise<FileHandle> {
  // Not waiting: opening a pipe in the place of the file would never end.
  const file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  if ((await file.stat()).isFile()) return file;
  await file.close();
  throw fault(path, "is not a regular file");
}

export type StateHeader = z.infer<typeof headerSchema>;

function parseHeader(bytes: Buffer, path: string): StateHeader {
  let json: unknown;
  try {
    json = JSON.parse(bytes.toString("utf8"));
  } catch {
    throw fault(path, "has a header that cannot be read");
  }
  const { version } = (json ?? {}) as { version?: unknown };
  if (version !== VERSION)
    throw fault(path, `is of version ${String(version)}; this program has version ${VERSION}`);
  const parsed = headerSchema.safeParse(json);
  if (!parsed.success) throw fault(path, `has a wrong header: ${z.prettifyError(parsed.error)}`);
  return parsed.data;
}

function requireOwner(header: StateHeader, owner: StateOwner, path: string): void {
  if (header.configSha256 !== owner.configSha256)
    throw fault(path, "belongs to a model with another config.json");
  if (header.revision !== null && owner.revision !== null && header.revision !== owner.revision) {
    throw fault(path, `belongs to revision ${header.revision}, the model is ${owner.revision}`);
  }
  if (header.layers !== owner.layers)
    throw fault(path, `is of ${header.layers} layers, the model runs ${owner.layers}`);
  const { vocabSize } = owner.config;
  if (header.position > header.ids.length || header.ids.some((id) => id >= vocabSize)) {
    throw fault(path, "has ids that cannot be");
  }
  if (header.logits !== 0 && header.logits !== vocabSize)
    throw fault(path, "has logits of another vocabulary");
}

/** A file read or written from its start, with the checksum of what went by. */
class CheckedFile {
  readonly #file: FileHandle;
  position = 0;
  crc = 0;

  constructor(file: FileHandle) {
    this.#file = file;
  }

  async write(bytes: Uint8Array): Promise<void> {
    for (let done = 0; done < bytes.length; ) {
      const { bytesWritten } = await this.#file.write(bytes, done, bytes.length - done, this.position + done);
      done += bytesWritten;
    }
    this.#passed(bytes);
  }

  async read(length: number, size: number, path: string): Promise<Buffer> {
    if (length > size - this.position) throw fault(path, `is truncated at ${size} bytes`);
    const bytes = Buffer.alloc(length);
    for (let done = 0; done < length; ) {
      const { bytesRead } = await this.#file.read(bytes, done, length - done, this.position + done);
      if (bytesRead === 0) throw fault(path, "ended while it was read");
      done += bytesRead;
    }
    this.#passed(bytes);
    return bytes;
  }

  #passed(bytes: Uint8Array): void {
    this.position += bytes.length;
    this.crc = crc32(bytes, this.crc);
  }
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

const fault = (path: string, what: string): StageError =>
  new StageError("E_DATA", `${path} ${what}`, { hint: "remove it and start again from the prompt" });
