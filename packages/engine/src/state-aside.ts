import { createHash } from "node:crypto";
import { readFileSync, readlinkSync } from "node:fs";
import { readdir, stat, unlink } from "node:fs/promises";
import { basename, dirname, join } from "node:path";

/**
 * Where a state is written before it is whole: `NAME.PID-START-PLACE.tmp` beside it. A kill leaves that file behind, gigabytes of a
 * large model, so its name says who to ask about it: the number of the process, when it started (numbers are given again),
 * and in which boot and which namespace of processes the number means anything (a directory may be shared by hosts and containers).
 */
export function asidePath(path: string): string {
  const here = placeOfProcesses();
  const writer = here === null ? String(process.pid) : `${process.pid}-${startOf("self")}-${here}`;
  return `${path}.${writer}.tmp`;
}

/** A save writes on and on: a file of a process that cannot be asked about is left alone until it is this old. */
const SILENT_MS = 3_600_000;

/** Removes what saves of this state left behind that were killed. Gives how many bytes that frees. */
export async function removeLeftovers(path: string): Promise<number> {
  const here = placeOfProcesses();
  let freed = 0;
  for (const name of await readdir(dirname(path))) {
    if (!name.startsWith(`${basename(path)}.`)) continue;
    const writer = /^(\d+)(?:-(\d+)-([0-9a-f]{12}))?\.tmp$/.exec(name.slice(basename(path).length + 1));
    if (!writer) continue;
    const [, pid, start, where] = writer;
    const file = join(dirname(path), name);
    const info = await stat(file).catch(() => null);
    if (!info?.isFile()) continue;
    const gone =
      where !== undefined && where === here
        ? hasEnded(Number(pid), start!)
        : Date.now() - info.mtimeMs > SILENT_MS;
    if (!gone) continue;
    const removed = await unlink(file).then(
      () => true,
      () => false,
    );
    if (removed) freed += info.size;
  }
  return freed;
}

/** The boot and the namespace that a number of a process belongs to; null where the system does not say. */
function placeOfProcesses(): string | null {
  try {
    const boot = readFileSync("/proc/sys/kernel/random/boot_id", "utf8");
    const namespace = readlinkSync("/proc/self/ns/pid");
    return (
      startOf("self") &&
      createHash("sha256")
        .update(boot + namespace)
        .digest("hex")
        .slice(0, 12)
    );
  } catch {
    return null;
  }
}

/** When a process started, in ticks since the boot (proc(5)); the word "ended" for one that only waits to be reaped. */
function startOf(pid: number | "self"): string {
  const text = readFileSync(`/proc/${pid}/stat`, "utf8");
  // The second field is the program's name, in which anything may stand.
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
  return /^[ZX]/.test(fields[0]!) ? "ended" : fields[19]!;
}

function hasEnded(pid: number, start: string): boolean {
  try {
    return startOf(pid) !== start;
  } catch {
    // A process of another user may be hidden in /proc.
    try {
      process.kill(pid, 0);
      return false;
    } catch (error) {
      return (error as NodeJS.ErrnoException).code === "ESRCH";
    }
  }
}
