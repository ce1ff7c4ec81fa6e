import { readdir, readFile, realpath, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
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
  /** The whole disks that those are or are partitions of, as major:minor: control groups count by disk. */
  disks: string[];
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
  // Bytes of some of the devices would look like those of all.
  const counted = missing.size > 0 ? [] : [...block.values()];
  const disks = await Promise.all(counted.map(({ device }) => diskOf(device, root)));
  const group = await cgroupFile(root);
  return {
    block: counted,
    disks: [...new Set(disks)],
    cgroup: "file" in group ? group.file : null,
    missing: [...missing.values(), ...("why" in group ? [group.why] : [])],
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

/** Bytes that the control group has read from each disk so far; null where it has no account of that one. */
export async function cgroupReadBytes({ cgroup, disks }: ReadAccounts): Promise<(number | null)[]> {
  if (cgroup === null) return [];
  const reads = parseCgroupReads(await text(cgroup));
  return disks.map((disk) => reads.get(disk) ?? null);
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

/** The number of the disk that a device is a partition of, else its own. */
async function diskOf(device: string, root: string): Promise<string> {
  const sys = join(root, "sys/dev/block", device);
  if ((await text(join(sys, "partition"))) === "") return device;
  // The links of /sys/dev/block end in the partition's directory, which lies in that of its disk.
  return (await text(join(dirname(await realpath(sys)), "dev"))).trim() || device;
}

/** A version 1 hierarchy that has the controller is the one that counts; else the unified one. */
async function cgroupFile(root: string): Promise<{ file: string } | { why: string }> {
  const groups = (await text(join(root, "proc/self/cgroup"))).split("\n").flatMap((line) => {
    // A path that leaves the namespace ("/../x") names a group that cannot be seen from here.
    const match = /^\d+:([^:]*):(\/(?!\.\.).*)$/.exec(line);
    return match ? [{ controllers: match[1]!.split(","), path: match[2]! }] : [];
  });
  const v1 = groups.find(({ controllers }) => controllers.includes("blkio"));
  const v2 = groups.find(({ controllers }) => controllers.join() === "");
  const candidates = [
    ...(v1 ? [{ mount: "blkio", path: v1.path, name: "blkio.throttle.io_service_bytes" }] : []),
    ...(v2 ? ["", "unified"].map((mount) => ({ mount, path: v2.path, name: "io.stat" })) : []),
  ];
  let found = false;
  for (const { mount, path, name } of candidates) {
    const top = join(root, "sys/fs/cgroup", mount);
    // Inside a container the path may be the host's; the mount point itself is then the group. Where the path is there, the
    // mount point is the group of everybody: what it counts says nothing about this process.
    const group = (await isDirectory(join(top, path))) ? join(top, path) : top;
    if (await exists(join(group, name))) return { file: join(group, name) };
    found ||= await isDirectory(group);
  }
  return {
    why: found
      ? "the io controller is not enabled for this control group"
      : "no control group counts the reads of this process",
  };
}

const exists = (path: string) =>
  stat(path).then(
    () => true,
    () => false,
  );
const isDirectory = (path: string) =>
  stat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );
const text = (path: string) => readFile(path, "utf8").catch(() => "");
