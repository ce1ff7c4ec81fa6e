import { readdir, readFile, realpath, stat } from "node:fs/promises";
import { basename, join } from "node:path";
import { mountOf } from "./machine.ts";

/** Where the kernel's files are looked for; tests put their own there. */
export interface SystemFiles {
  root?: string;
}

/** A block device as the kernel names it: `{device: "254:0", name: "vda"}`. */
export interface BlockDevice {
  /** major:minor. */
  device: string;
  name: string;
}

/** Who counts the bytes that a run reads from the device, apart from what the process itself owes. */
export interface ReadAccounts {
  /** The devices that hold checkpoint and trunk. They count what everybody on the machine reads. */
  block: BlockDevice[];
  /** The file in which this process's control group counts reads per device; null where there is none. */
  cgroup: string | null;
  /** Why an account is missing, in sentences. */
  missing: string[];
}

/** The kernel counts sectors of 512 bytes whatever the device's own sectors are (Documentation/block/stat.rst). */
const SECTOR = 512;

/** Bytes read so far, from /sys/dev/block/MAJ:MIN/stat; undefined for anything else. */
export function readBytesOfStat(text: string): number | undefined {
  const fields = text.trim().split(/\s+/);
  return fields.length >= 11 && fields.every((field) => /^\d+$/.test(field))
    ? Number(fields[2]) * SECTOR
    : undefined;
}

/** Every device of /proc/diskstats, partitions included, by major:minor. */
export function parseDiskstats(text: string): Map<string, { name: string; readBytes: number }> {
  const devices = new Map<string, { name: string; readBytes: number }>();
  for (const line of text.split("\n")) {
    const [major, minor, name, ...counters] = line.trim().split(/\s+/);
    const readBytes = readBytesOfStat(counters.join(" "));
    if (name && readBytes !== undefined) devices.set(`${major}:${minor}`, { name, readBytes });
  }
  return devices;
}

/** Bytes read per major:minor, from blkio.throttle.io_service_bytes (version 1) or io.stat (version 2). */
export function parseCgroupReads(text: string): Map<string, number> {
  const reads = new Map<string, number>();
  for (const line of text.split("\n")) {
    const match = /^(\d+:\d+) (?:Read (\d+)|(?:\S+ )*?rbytes=(\d+).*)$/.exec(line);
    if (match) reads.set(match[1]!, Number(match[2] ?? match[3]));
  }
  return reads;
}

/** The major:minor of a `st_dev` (gnu_dev_major and gnu_dev_minor of sysmacros.h). */
export function deviceNumber(dev: bigint): string {
  const major = ((dev >> 8n) & 0xfffn) | ((dev >> 32n) & ~0xfffn);
  const minor = (dev & 0xffn) | ((dev >> 12n) & 0xffffff00n);
  return `${major}:${minor}`;
}

/** Finds the accounts for what lies in `dirs`. Never throws for a system that keeps none. */
export async function findReadAccounts(
  dirs: readonly string[],
  { root = "/" }: SystemFiles = {},
): Promise<ReadAccounts> {
  const block = new Map<string, BlockDevice>();
  const missing = new Map<string, string>();
  for (const path of (await Promise.all(dirs.map(weightFiles))).flat()) {
    const device = deviceNumber((await stat(path, { bigint: true })).dev);
    if (block.has(device) || missing.has(device)) continue;
    const name = await blockDeviceName(device, root);
    if (name) block.set(device, { device, name });
    else {
      const type = (await mountOf(path))?.type ?? "a filesystem";
      missing.set(
        device,
        `no block statistics for ${path}: it lies on ${type}, which has no block device of its own (${device})`,
      );
    }
  }
  const cgroup = await cgroupFile(root);
  return {
    // Bytes of some of the devices would look like those of all.
    block: missing.size > 0 ? [] : [...block.values()],
    cgroup,
    missing: [
      ...missing.values(),
      ...(cgroup === null ? ["no control group counts the reads of this process"] : []),
    ],
  };
}

/** Bytes read so far by device; null where the device is gone. */
export async function blockReadBytes(
  devices: readonly BlockDevice[],
  { root = "/" }: SystemFiles = {},
): Promise<(number | null)[]> {
  const stats = parseDiskstats(await text(join(root, "proc/diskstats")));
  return Promise.all(
    devices.map(
      async ({ device }) =>
        readBytesOfStat(await text(join(root, "sys/dev/block", device, "stat"))) ??
        stats.get(device)?.readBytes ??
        null,
    ),
  );
}

/** Bytes that the control group has read from these devices so far; null when it has no account of any of them. */
export async function cgroupReadBytes({ cgroup, block }: ReadAccounts): Promise<number | null> {
  if (cgroup === null || block.length === 0) return null;
  const reads = parseCgroupReads(await text(cgroup));
  const known = block.flatMap(({ device }) => reads.get(device) ?? []);
  return known.length > 0 ? known.reduce((sum, bytes) => sum + bytes, 0) : null;
}

/** The files that a pass reads, links followed: shards and the trunk's data may lie on other disks than their names. */
async function weightFiles(dir: string): Promise<string[]> {
  const names = (await readdir(dir)).filter((name) => /\.(safetensors|bin)$/.test(name));
  return names.length > 0 ? names.map((name) => join(dir, name)) : [dir];
}

async function blockDeviceName(device: string, root: string): Promise<string | undefined> {
  const sys = join(root, "sys/dev/block", device);
  if (readBytesOfStat(await text(join(sys, "stat"))) !== undefined) return basename(await realpath(sys));
  return parseDiskstats(await text(join(root, "proc/diskstats"))).get(device)?.name;
}

/** A version 1 hierarchy that has the controller is the one that counts; else the unified one. */
async function cgroupFile(root: string): Promise<string | null> {
  const groups = (await text(join(root, "proc/self/cgroup"))).split("\n").flatMap((line) => {
    const match = /^\d+:([^:]*):(\/.*)$/.exec(line);
    return match ? [{ controllers: match[1]!.split(","), path: match[2]! }] : [];
  });
  const v1 = groups.find(({ controllers }) => controllers.includes("blkio"));
  const v2 = groups.find(({ controllers }) => controllers.join() === "");
  const candidates = [
    // Inside a container the path may be the host's; the mount point itself is then the group.
    ...(v1 ? [v1.path, ""] : []).map((path) =>
      join(root, "sys/fs/cgroup/blkio", path, "blkio.throttle.io_service_bytes"),
    ),
    ...(v2 ? [v2.path, ""] : []).flatMap((path) =>
      ["", "unified"].map((mount) => join(root, "sys/fs/cgroup", mount, path, "io.stat")),
    ),
  ];
  for (const path of candidates) if (await stat(path).catch(() => undefined)) return path;
  return null;
}

const text = (path: string) => readFile(path, "utf8").catch(() => "");
