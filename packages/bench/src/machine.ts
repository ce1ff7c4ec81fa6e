import { readFile, realpath, stat } from "node:fs/promises";
import { cpus, release, totalmem, version } from "node:os";
import { availableMemory } from "@k3/engine";

/** What a measurement was made on: everything that two results must share to be compared. */
export interface Machine {
  cpu: string;
  threads: number;
  memory_bytes: number;
  kernel: string;
  node: string;
  /** Of the directory that was measured; null where the system does not say. */
  filesystem: string | null;
  disk: string | null;
  /** What memory may be used, and whether the system or a control group sets it. */
  usable_memory_bytes: number;
  memory_limit: "system" | "cgroup-v1" | "cgroup-v2";
}

export async function describeMachine(dir: string): Promise<Machine> {
  const mount = await mountOf(dir);
  const usable = availableMemory();
  return {
    cpu: cpus()[0]?.model.trim() ?? "unknown",
    threads: cpus().length,
    memory_bytes: totalmem(),
    kernel: `${release()} ${version()}`,
    node: process.version,
    filesystem: mount?.type ?? null,
    disk: mount ? await diskModel(mount.device) : null,
    usable_memory_bytes: usable.bytes,
    memory_limit: usable.limit,
  };
}

export interface Mount {
  /** major:minor. */
  device: string;
  point: string;
  type: string;
  source: string;
}

/** The mount that a path lies on, from /proc/self/mountinfo (proc(5)): the longest mount point that leads to it. */
export async function mountOf(path: string): Promise<Mount | null> {
  const [text, real] = await Promise.all([
    readFile("/proc/self/mountinfo", "utf8").catch(() => ""),
    realpath(path),
  ]);
  let best: Mount | null = null;
  for (const line of text.split("\n")) {
    const [before, after] = line.split(" - ");
    const fields = before?.split(" ") ?? [];
    const [type, source] = after?.split(" ") ?? [];
    const point = unescapeOctal(fields[4] ?? "");
    if (!type || !source || !fields[2]) continue;
    const leads = real === point || real.startsWith(point === "/" ? "/" : `${point}/`);
    if (leads && point.length >= (best?.point.length ?? 0)) best = { device: fields[2], point, type, source };
  }
  return best;
}

const unescapeOctal = (text: string) =>
  text.replace(/\\(\d{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));

async function diskModel(device: string): Promise<string | null> {
  for (const path of [`/sys/dev/block/${device}/device/model`, `/sys/dev/block/${device}/../device/model`]) {
    const model = (await readFile(path, "utf8").catch(() => "")).trim();
    if (model) return model;
  }
  return (await stat(`/sys/dev/block/${device}`).catch(() => null)) ? `block device ${device}` : null;
}
