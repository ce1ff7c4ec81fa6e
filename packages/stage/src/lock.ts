import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { close, open } from "node:fs";
import { readFile, realpath, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { dirname } from "node:path";
import { setTimeout } from "node:timers/promises";
import { promisify } from "node:util";
import { makeDirectory } from "./atomic.ts";
import { StageError } from "./errors.ts";

/** What the flock program is told to exit with when another holds the lock. */
const HELD = 75;

/** A held one-writer lock. It also dies with the process, however the process dies. */
export interface Lock {
  readonly path: string;
  release(): Promise<void>;
}

/**
 * Takes the one-writer lock of a directory by its lock file, or throws E_LOCKED naming the holder at once.
 *
 * The lock is flock(2) on a file that this process keeps open, so nothing but its end or `release` can free it: the
 * `flock` program of util-linux takes it through a descriptor that it inherits, and ends. Where there is no such
 * program, an abstract Unix socket named after the file does the same within one host.
 */
export async function lockFile(path: string, purpose: string): Promise<Lock> {
  await makeDirectory(dirname(path));
  let lock = await tryLock(path);
  // A holder that was just killed keeps the lock until its last write is done.
  for (let tries = 0; lock === "held" && tries < 60 && !(await holderLives(path)); tries++) {
    await setTimeout(50);
    lock = await tryLock(path);
  }
  if (lock === "held") {
    const holder = (await readFile(path, "utf8").catch(() => "")).trim();
    throw new StageError(
      "E_LOCKED",
      `another process is at work on ${dirname(path)}${holder ? ` (${holder})` : ""}`,
      {
        hint: "wait for it to finish, or stop it, and run the same command again",
      },
    );
  }
  await writeFile(path, `pid ${process.pid}, ${purpose}\n`).catch(() => undefined);
  return lock;
}

async function tryLock(path: string): Promise<Lock | "held"> {
  const byFlock = await lockByFlock(path);
  return byFlock === "unavailable" ? lockBySocket(path) : byFlock;
}

/** False only when the lock file names a process of this machine that has ended (a zombie has). */
async function holderLives(path: string): Promise<boolean> {
  const pid = /^pid (\d+),/.exec(await readFile(path, "utf8").catch(() => ""))?.[1];
  if (pid === undefined || process.platform !== "linux") return true;
  const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => undefined);
  return stat !== undefined && !/^[ZX]/.test(stat.slice(stat.lastIndexOf(")") + 2));
}

async function lockByFlock(path: string): Promise<Lock | "held" | "unavailable"> {
  // A plain number: a FileHandle that nobody refers to any more would be closed, and the lock gone.
  const descriptor = await promisify(open)(path, "a");
  const free = () => promisify(close)(descriptor);
  const code = await runFlock(descriptor);
  if (code === 0) return { path, release: free };
  await free();
  return code === HELD ? "held" : "unavailable";
}

/** Locks what the descriptor has open, for all that share it. Gives the exit code; undefined when there is no such program. */
function runFlock(descriptor: number): Promise<number | null | undefined> {
  return new Promise((resolve) => {
    // detached: Ctrl-C in a terminal must not make the lock look unavailable.
    const program = spawn("flock", ["-n", "-E", String(HELD), "3"], {
      stdio: ["ignore", "ignore", "ignore", descriptor],
      detached: true,
    });
    program.once("error", () => resolve(undefined));
    program.once("exit", (code) => resolve(code));
  });
}

async function lockBySocket(path: string): Promise<Lock | "held"> {
  const name = `\0k3-${createHash("sha256")
    .update(await realpath(path))
    .digest("hex")
    .slice(0, 40)}`;
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.unref();
    server.once("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "EADDRINUSE") resolve("held");
      else reject(error);
    });
    server.listen(name, () => {
      resolve({ path, release: () => new Promise((done) => server.close(() => done())) });
    });
  });
}
