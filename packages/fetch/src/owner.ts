import { readFile, stat } from "node:fs/promises";
import { hostname } from "node:os";
import { readJournal, StageError } from "@k3/stage";
import { z } from "zod";

/** The process that works on a part file, as its journal names it. */
export const owner = z.object({ pid: z.int(), start: z.string(), host: z.string(), boot: z.string() });
export type Owner = z.infer<typeof owner>;

/** A journal of another machine younger than this belongs to a process that may be alive (there is no way to ask it). */
const FOREIGN_OWNER_MS = 60_000;

async function bootId(): Promise<string> {
  return (await readFile("/proc/sys/kernel/random/boot_id", "utf8").catch(() => "unknown")).trim();
}

/** When a process started, in clock ticks since boot: a reused pid has another one. Undefined: it is not running. */
async function processStart(pid: number): Promise<string | undefined> {
  const text = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => undefined);
  if (text !== undefined) {
    const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
    return fields[0] === "Z" || fields[0] === "X" ? undefined : fields[19];
  }
  try {
    process.kill(pid, 0);
    return "unknown";
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM" ? "unknown" : undefined;
  }
}

export async function thisProcess(): Promise<Owner> {
  const start = (await processStart(process.pid)) ?? "unknown";
  return { pid: process.pid, start, host: hostname(), boot: await bootId() };
}

const sameOwner = (a: Owner, b: Owner) => a.pid === b.pid && a.start === b.start && a.host === b.host;

function owners(records: readonly unknown[]): Owner[] {
  return records.flatMap((entry) => z.object({ o: owner }).safeParse(entry).data?.o ?? []);
}

async function mayLive(candidate: Owner, me: Owner, journalPath: string): Promise<boolean> {
  if (sameOwner(candidate, me)) return false;
  if (candidate.boot === me.boot && candidate.host !== me.host) {
    return false; // another container of this machine: its lock works here, and its process ids mean nothing to us
  }
  if (candidate.host !== me.host) {
    const age = Date.now() - ((await stat(journalPath).catch(() => undefined))?.mtimeMs ?? 0);
    return age < FOREIGN_OWNER_MS;
  }
  return candidate.boot === me.boot && (await processStart(candidate.pid)) === candidate.start;
}

/**
 * The lock of the directory keeps others out; where it does nothing (some network filesystems), this does: a part file
 * whose journal names a live owner is not opened.
 */
export async function requireDeadOwner(
  records: readonly unknown[],
  me: Owner,
  journalPath: string,
  what: string,
): Promise<void> {
  const last = owners(records).at(-1);
  if (last && (await mayLive(last, me, journalPath))) throw owned(what, last);
}

/** Of two processes that took over at the same moment, the one whose record came first goes on. */
export async function requireFirstLiveOwner(journalPath: string, me: Owner, what: string): Promise<void> {
  for (const candidate of owners((await readJournal(journalPath)).records)) {
    if (sameOwner(candidate, me)) return;
    if (await mayLive(candidate, me, journalPath)) throw owned(what, candidate);
  }
}

export function owned(what: string, by: Owner | undefined): StageError {
  const who = by ? `process ${by.pid} on ${by.host}` : "another process";
  return new StageError("E_LOCKED", `${what} is being downloaded by ${who}`, {
    hint: "wait for it to finish, or stop it, and run the same command again",
  });
}
