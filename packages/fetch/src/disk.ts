import { spawn } from "node:child_process";
import type { FileHandle } from "node:fs/promises";
import { StageError } from "@k3/stage";

/** At most so many operations at a time; the others wait their turn. */
class Lane {
  readonly #limit: number;
  readonly #waiting: (() => void)[] = [];
  #running = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  async run<T>(operation: () => Promise<T>): Promise<T> {
    if (this.#running >= this.#limit) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    else this.#running++;
    try {
      return await operation();
    } finally {
      const next = this.#waiting.shift();
      if (next) next();
      else this.#running--;
    }
  }
}

/**
 * The disk operations of a run. They can block for seconds on a slow disk, and each blocks a thread of libuv's pool, which
 * name lookups need too: with all of them blocked, no new connection can be made (nodejs/node#8436). So writes take at
 * most half of the pool, syncs one thread. Syncs have a lane of their own, so that writes go on beside a long one; and
 * writes need several, since a busy event loop starts the next only once in a round.
 */
export class DiskQueue {
  readonly #writes = new Lane(Math.min(8, Math.max(2, Math.floor(threadPoolSize() / 2))));
  readonly #syncs = new Lane(1);

  write<T>(operation: () => Promise<T>): Promise<T> {
    return this.#writes.run(operation);
  }

  /** For whatever waits for the device: syncs, and the steps of opening and publishing that consist of them. */
  sync<T>(operation: () => Promise<T>): Promise<T> {
    return this.#syncs.run(operation);
  }
}

/** Threads of libuv's pool: 4 unless the environment said otherwise when Node started. */
function threadPoolSize(): number {
  return Number(process.env["UV_THREADPOOL_SIZE"]) || 4;
}

/** A fixed number of buffers, made when first needed. Waiting for one is what slows the network to the disk's speed. */
export class BufferPool {
  readonly bufferBytes: number;
  #unmade: number;
  readonly #free: Buffer[] = [];
  readonly #waiting: { resolve: (buffer: Buffer) => void; reject: (error: unknown) => void }[] = [];

  constructor(count: number, bufferBytes: number) {
    this.#unmade = count;
    this.bufferBytes = bufferBytes;
  }

  acquire(): Buffer | Promise<Buffer> {
    const buffer = this.#free.pop();
    if (buffer) return buffer;
    if (this.#unmade > 0) {
      this.#unmade--;
      return Buffer.allocUnsafeSlow(this.bufferBytes);
    }
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  release(buffer: Buffer): void {
    const next = this.#waiting.shift();
    if (next) next.resolve(buffer);
    else this.#free.push(buffer);
  }

  /** Ends all waiting: nothing may come any more. */
  cancel(error: unknown): void {
    for (const waiting of this.#waiting.splice(0)) waiting.reject(error);
  }
}

/**
 * The bound on what a kill can cost: bytes received but not yet in a journal never exceed `limit` (connections times
 * segment). Connections run ahead of the syncs only as far as that allows.
 */
export class RiskBudget {
  readonly #limit: number;
  readonly #waiting: { resolve: () => void; reject: (error: unknown) => void }[] = [];
  #used = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  fits(bytes: number): boolean {
    return this.#used + bytes <= this.#limit;
  }

  add(bytes: number): void {
    this.#used += bytes;
  }

  release(bytes: number): void {
    this.#used -= bytes;
    for (const waiting of this.#waiting.splice(0)) waiting.resolve();
  }

  cancel(error: unknown): void {
    for (const waiting of this.#waiting.splice(0)) waiting.reject(error);
  }

  /** Resolves at the next release. */
  changed(): Promise<void> {
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }
}

/**
 * Gives a new file its full size, its blocks reserved by `fallocate` where there is such a program and filesystem, so
 * that space is not lost to others and fragments are few; else sparse. Throws E_SPACE when it does not fit.
 */
export async function preallocate(handle: FileHandle, path: string, size: number): Promise<void> {
  if (size >= 1024 * 1024 && process.platform === "linux" && (await runFallocate(path, size))) return;
  await handle.truncate(size);
}

function runFallocate(path: string, size: number): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const helper = spawn("fallocate", ["-l", String(size), "--", path], {
      stdio: ["ignore", "ignore", "pipe"],
      env: { ...process.env, LC_ALL: "C" },
    });
    let said = "";
    helper.stderr.on("data", (chunk: Buffer) => {
      said += chunk.toString("utf8").slice(0, 1000);
    });
    helper.once("error", () => resolve(false));
    helper.once("close", (code) => {
      if (code === 0) resolve(true);
      else if (/no space left|quota/i.test(said)) {
        reject(
          new StageError("E_SPACE", `${path}: the disk has no room for its ${size} bytes`, {
            hint: "free some space and run the same command again; what is written so far is kept",
            details: { needed: size, path },
          }),
        );
      } else resolve(false);
    });
  });
}
