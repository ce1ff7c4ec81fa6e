import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { MessageChannel, Worker } from "node:worker_threads";
import type { FileIdentity, HashRecord } from "@k3/stage";
import { bufferForHere, hashHere } from "./hash-here.ts";

export interface HashTask {
  path: string;
  algorithm: HashRecord["algorithm"];
  /** Bytes that the file should have: part of what git hashes. */
  size: number;
  /** Read past the page cache, where the filesystem lets us. */
  direct: boolean;
}

export interface HashedFile {
  hash: string;
  /** CRC-32 of each 64 MiB, in order. */
  crc32: number[];
  /** What the file was when it had been read. */
  identity: FileIdentity;
  startedMs: number;
  /** Every byte was read past the page cache. */
  direct: boolean;
  /** The file was written to, or replaced in its place, while it was read: the hash is of nothing in particular. */
  changed: boolean;
}

export type HashAnswer =
  | { read: number }
  | { done: HashedFile }
  | { error: { message: string; code: string | undefined } };

/** Files up to this size are hashed where we are. */
const SMALL_BYTES = 1024 * 1024;

/** Hashes one file after another; its threads are started when the first large one comes. */
export class LazyHasher {
  #hasher: FileHasher | undefined;
  #buffer: Uint8Array | undefined;

  async hash(task: HashTask, onBytes: (bytes: number) => void): Promise<HashedFile> {
    if (task.size > SMALL_BYTES) {
      this.#hasher ??= new FileHasher();
      return this.#hasher.hash(task, onBytes);
    }
    this.#buffer ??= bufferForHere();
    const file = await hashHere(task, this.#buffer);
    onBytes(file.identity.size);
    return file;
  }

  async close(): Promise<void> {
    await this.#hasher?.close();
  }
}

/** Hashes one file after another, in two threads of its own. */
export class FileHasher {
  readonly #reader: Worker;
  readonly #digester: Worker;
  #waiting:
    | { resolve: (file: HashedFile) => void; reject: (error: Error) => void; onBytes: (n: number) => void }
    | undefined;

  constructor() {
    const { port1, port2 } = new MessageChannel();
    const start = (role: "read" | "digest", port: typeof port1) =>
      new Worker(workerPath(), {
        name: `k3-verify ${role}`,
        workerData: { role, port },
        transferList: [port],
      });
    this.#reader = start("read", port1);
    this.#digester = start("digest", port2);
    this.#reader.on("message", (answer: HashAnswer) => this.#answer(answer));
    for (const worker of [this.#reader, this.#digester]) {
      worker.on("error", (error) => this.#fail(error as Error));
      worker.on("exit", () => this.#fail(new Error("a hashing thread ended")));
    }
  }

  /** Reads a file to its end. `onBytes` is told of progress. Rejects with what opening or reading it threw. */
  hash(task: HashTask, onBytes: (bytes: number) => void): Promise<HashedFile> {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject, onBytes };
      this.#reader.postMessage(task);
    });
  }

  /** Stops both threads, wherever they are; a hash under way is rejected. */
  async close(): Promise<void> {
    await Promise.all([this.#reader.terminate(), this.#digester.terminate()]);
  }

  #answer(answer: HashAnswer): void {
    if ("read" in answer) this.#waiting?.onBytes(answer.read);
    else if ("error" in answer) this.#fail(Object.assign(new Error(answer.error.message), answer.error));
    else {
      this.#waiting?.resolve(answer.done);
      this.#waiting = undefined;
    }
  }

  #fail(error: Error): void {
    this.#waiting?.reject(error);
    this.#waiting = undefined;
  }
}

/** Beside this module when built; when run from the sources (in tests), the built one of this package. */
function workerPath(): string {
  const beside = fileURLToPath(new URL("./hash-worker.js", import.meta.url));
  return existsSync(beside) ? beside : fileURLToPath(new URL("../dist/hash-worker.js", import.meta.url));
}
