import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdir, open, readFile, realpath, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { dirname } from "node:path";
import { setTimeout } from "node:timers/promises";
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
 * The lock is flock(2), taken by the `flock` program of util-linux in a helper that lives as long as our end of its
 * pipe: SIGKILL of this process closes the pipe and thus frees the lock, and nothing stale is left. Where there is
 * no such program, an abstract Unix socket named after the file does the same within one host.
 */
export async function lockFile(path: string, purpose: string): Promise<Lock> {
  await mkdir(dirname(path), { recursive: true });
  await (await open(path, "a")).close();
  let lock = await tryLock(path);
  // The helper of a holder that was just killed may need a moment to notice.
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

function lockByFlock(path: string): Promise<Lock | "held" | "unavailable"> {
  return new Promise((resolve) => {
    // detached: Ctrl-C in a terminal must not take the helper away before we have finished writing.
    const helper = spawn(
      "flock",
      ["-n", "-E", String(HELD), path, "sh", "-c", "echo ok; exec cat >/dev/null"],
      {
        stdio: ["pipe", "pipe", "ignore"],
        detached: true,
      },
    );
    const exited = new Promise<void>((done) => helper.once("close", () => done()));
    helper.once("error", () => resolve("unavailable"));
    helper.once("exit", (code) => resolve(code === HELD ? "held" : "unavailable"));
    helper.stdin.on("error", () => undefined);
    helper.stdout.once("data", () => {
      helper.removeAllListeners("exit");
      helper.unref();
      for (const pipe of [helper.stdin, helper.stdout]) (pipe as unknown as { unref?: () => void }).unref?.();
      resolve({
        path,
        release: async () => {
          helper.stdin.end();
          helper.ref();
          await exited;
        },
      });
    });
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
