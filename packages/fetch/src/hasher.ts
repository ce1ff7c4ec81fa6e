import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import type { SnapshotFile } from "@k3/stage";
import { expectedHash } from "@k3/stage";

type Algorithm = "sha256" | "git-sha1";

export type HashTask =
  | { id: number; op: "start"; key: number; path: string; algorithm: Algorithm; size: number }
  | { id: number; op: "read"; key: number; bytes: number; crc: number | undefined }
  | { id: number; op: "finish" | "drop"; key: number };

export interface HashAnswer {
  id: number;
  matches?: boolean;
  /** The file was shorter than the bytes asked for. */
  ended?: boolean;
  hash?: string;
  crc32?: number[];
  error?: { message: string; code: string | undefined; path: string | undefined };
}

type Unnumbered<T> = T extends unknown ? Omit<T, "id"> : never;

/** Hashes of files, computed in order in a thread of its own while the files grow. */
export class Hasher {
  #worker: Worker | undefined;
  readonly #answers = new Map<
    number,
    { resolve: (answer: HashAnswer) => void; reject: (e: Error) => void }
  >();
  #id = 0;
  #key = 0;

  /** Begins the hash of a file on the disk, which may still be incomplete. */
  async start(path: string, algorithm: Algorithm, size: number): Promise<FileHash> {
    const key = this.#key++;
    await this.#ask({ op: "start", key, path, algorithm, size });
    return {
      read: async (bytes, crc) => {
        const { matches, ended } = await this.#ask({ op: "read", key, bytes, crc });
        return ended ? "ended" : matches ? "ok" : "mismatch";
      },
      finish: async () => {
        const { hash, crc32 } = await this.#ask({ op: "finish", key });
        return { hash: hash!, crc32: crc32! };
      },
      drop: async () => {
        await this.#ask({ op: "drop", key });
      },
    };
  }

  async close(): Promise<void> {
    await this.#worker?.terminate();
    this.#worker = undefined;
  }

  #ask(task: Unnumbered<HashTask>): Promise<HashAnswer> {
    const id = this.#id++;
    this.#worker ??= this.#startWorker();
    return new Promise((resolve, reject) => {
      this.#answers.set(id, { resolve, reject });
      this.#worker!.postMessage({ id, ...task });
    });
  }

  #startWorker(): Worker {
    const worker = new Worker(workerPath(), { name: "k3-fetch hash", execArgv: [] });
    worker.on("message", (answer: HashAnswer) => {
      const waiting = this.#answers.get(answer.id);
      this.#answers.delete(answer.id);
      if (answer.error) waiting?.reject(Object.assign(new Error(answer.error.message), answer.error));
      else waiting?.resolve(answer);
    });
    const fail = (error: Error) => {
      // What is asked from now on gets a thread that answers, if only that it does not know the key.
      if (this.#worker === worker) this.#worker = undefined;
      for (const waiting of this.#answers.values()) waiting.reject(error);
      this.#answers.clear();
    };
    worker.on("error", fail);
    worker.on("exit", () => fail(new Error("the hashing thread ended")));
    worker.unref();
    return worker;
  }
}

/** One hash being computed. Calls must be awaited one after another. */
export interface FileHash {
  /**
   * Hashes the next `bytes`. With a CRC-32, bytes that do not have it are not taken in ("mismatch"): the same call can be
   * repeated once they have been fetched again. "ended": the file is shorter.
   */
  read(bytes: number, crc?: number): Promise<"ok" | "mismatch" | "ended">;
  /** The hash in hex, and the CRC-32 of each 64 MiB. */
  finish(): Promise<{ hash: string; crc32: number[] }>;
  drop(): Promise<void>;
}

/** Hashes a whole file; undefined when it is shorter than it should be. `onBytes` is told of every step. */
export async function hashWhole(
  hasher: Hasher,
  path: string,
  file: SnapshotFile,
  signal: AbortSignal,
  onBytes: (bytes: number) => void,
): Promise<{ hash: string; crc32: number[] } | undefined> {
  const hash = await hasher.start(path, expectedHash(file).algorithm, file.size);
  const step = 16 * 1024 * 1024;
  for (let done = 0; done < file.size; done += step) {
    const bytes = Math.min(step, file.size - done);
    if (signal.aborted || (await hash.read(bytes)) !== "ok") {
      await hash.drop();
      signal.throwIfAborted();
      return undefined;
    }
    onBytes(bytes);
  }
  return hash.finish();
}

/** Beside this module when built; when run from the sources (in tests), the built one of this package. */
function workerPath(): string {
  const beside = fileURLToPath(new URL("./hash-worker.js", import.meta.url));
  return existsSync(beside) ? beside : fileURLToPath(new URL("../dist/hash-worker.js", import.meta.url));
}
