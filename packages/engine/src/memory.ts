import { readFileSync } from "node:fs";
import { freemem } from "node:os";
import { join } from "node:path";

/** Where the kernel's files are looked for; tests put their own there. */
export interface SystemFiles {
  root?: string;
}

export interface AvailableMemory {
  /** What this process may use in all, itself included, with the margin taken off. */
  bytes: number;
  /** The same without a margin: what cannot be exceeded. */
  most: number;
  /** What set it. */
  limit: "system" | "cgroup-v1" | "cgroup-v2";
}

/** Left to others: the kernel, page tables, other processes that grow. Of little memory never more than a tenth. */
const MARGIN_SHARE = 0.05;
const MARGIN_LEAST = 256e6;
const MARGIN_MOST_SHARE = 0.1;

/**
 * What `--memory auto` takes: the smaller of the system's available memory and what the control groups of this process
 * leave, with what it already uses added and a margin of 5 % (256 MB at least, but at most a tenth) taken off.
 */
export function availableMemory({ root = "/" }: SystemFiles = {}): AvailableMemory {
  const used = process.memoryUsage.rss();
  const system = memAvailable(root) ?? freemem();
  let best: Omit<AvailableMemory, "bytes"> = { most: system + used, limit: "system" };
  for (const group of cgroupRoom(root)) {
    if (group.room + used < best.most) best = { most: group.room + used, limit: group.limit };
  }
  const margin = Math.max(best.most * MARGIN_SHARE, Math.min(MARGIN_LEAST, best.most * MARGIN_MOST_SHARE));
  return { ...best, bytes: Math.max(0, Math.floor(best.most - margin)) };
}

/** Bytes resident now, and at the peak of the process's life so far. */
export function residentBytes(): { now: number; peak: number } {
  return { now: process.memoryUsage.rss(), peak: process.resourceUsage().maxRSS * 1024 };
}

function memAvailable(root: string): number | undefined {
  const match = /^MemAvailable:\s+(\d+) kB/m.exec(read(join(root, "proc/meminfo")) ?? "");
  return match ? Number(match[1]) * 1024 : undefined;
}

/** For every control group of this process and their parents that has a limit: how far its use is from it. */
function cgroupRoom(root: string): { room: number; limit: "cgroup-v1" | "cgroup-v2" }[] {
  const rooms: { room: number; limit: "cgroup-v1" | "cgroup-v2" }[] = [];
  for (const line of (read(join(root, "proc/self/cgroup")) ?? "").split("\n")) {
    const match = /^(\d+):([^:]*):(\/.*)$/.exec(line);
    if (!match) continue;
    const unified = match[1] === "0" && match[2] === "";
    if (!unified && !match[2]!.split(",").includes("memory")) continue;
    const mounts = unified ? ["sys/fs/cgroup", "sys/fs/cgroup/unified"] : ["sys/fs/cgroup/memory"];
    // Inside a container the path may be the host's; the mount point itself is then the group.
    for (let path = match[3]!; ; path = path.slice(0, path.lastIndexOf("/"))) {
      for (const mount of mounts) {
        const dir = join(root, mount, path);
        const room = unified ? room2(dir) : room1(dir);
        if (room !== undefined) rooms.push({ room, limit: unified ? "cgroup-v2" : "cgroup-v1" });
      }
      if (path === "" || path === "/") break;
    }
  }
  return rooms;
}

function room2(dir: string): number | undefined {
  const limit = number(read(join(dir, "memory.max")));
  const used = number(read(join(dir, "memory.current")));
  if (limit === undefined || used === undefined) return undefined;
  return Math.max(0, limit - used + reclaimable(join(dir, "memory.stat"), /^(?:in)?active_file (\d+)$/gm));
}

function room1(dir: string): number | undefined {
  const limit = number(read(join(dir, "memory.limit_in_bytes")));
  const used = number(read(join(dir, "memory.usage_in_bytes")));
  // Without a limit v1 shows the largest page-aligned number.
  if (limit === undefined || used === undefined || limit > 2 ** 62) return undefined;
  return Math.max(
    0,
    limit - used + reclaimable(join(dir, "memory.stat"), /^total_(?:in)?active_file (\d+)$/gm),
  );
}

/** Page cache counts against a group but gives way. */
function reclaimable(path: string, pattern: RegExp): number {
  let sum = 0;
  for (const match of (read(path) ?? "").matchAll(pattern)) sum += Number(match[1]);
  return sum;
}

function number(text: string | undefined): number | undefined {
  return text !== undefined && /^\d+\s*$/.test(text) ? Number(text) : undefined;
}

function read(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined;
  }
}
