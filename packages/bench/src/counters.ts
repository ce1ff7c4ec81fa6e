import { readFile } from "node:fs/promises";
import { blockReadBytes, cgroupReadBytes, type ReadAccounts } from "./read-accounts.ts";

/** What the kernel says this process, its control group and its disks have used so far. */
export interface Counters {
  /** Bytes fetched from the storage layer (`read_bytes` of /proc/self/io): the page cache is not in it. */
  deviceReadBytes: number | null;
  /** Bytes that the control group read from each disk of the accounts. */
  cgroupReadBytes: (number | null)[];
  /** Bytes read from each device of the accounts, by whomever. */
  blockReadBytes: (number | null)[];
  /** Seconds of CPU, user and system, of all threads. */
  cpuSeconds: number;
  /** Seconds that any task of the machine waited for I/O (PSI `some` total of /proc/pressure/io). */
  ioWaitSeconds: number | null;
}

export async function readCounters(accounts: ReadAccounts): Promise<Counters> {
  const [io, pressure, cgroup, block] = await Promise.all([
    readFile("/proc/self/io", "utf8").catch(() => ""),
    readFile("/proc/pressure/io", "utf8").catch(() => ""),
    cgroupReadBytes(accounts),
    blockReadBytes(accounts.block),
  ]);
  const { user, system } = process.cpuUsage();
  const device = /^read_bytes: (\d+)$/m.exec(io)?.[1];
  const waited = /^some .*total=(\d+)$/m.exec(pressure)?.[1];
  return {
    deviceReadBytes: device === undefined ? null : Number(device),
    cgroupReadBytes: cgroup,
    blockReadBytes: block,
    cpuSeconds: (user + system) / 1e6,
    ioWaitSeconds: waited === undefined ? null : Number(waited) / 1e6,
  };
}

/** What was counted between two readings. A counter that began in between began at nothing; null where there is none. */
export function counted(before: number | null, after: number | null): number | null {
  return after === null ? null : after - (before ?? 0);
}

/** The same of counters side by side. */
export const countedEach = (before: readonly (number | null)[], after: readonly (number | null)[]) =>
  after.map((value, k) => counted(before[k]!, value));

/** The sum of all, or null: of some it would look like that of all. */
export function sumOfKnown(values: readonly (number | null)[]): number | null {
  const known = values.filter((value): value is number => value !== null);
  return known.length > 0 && known.length === values.length
    ? known.reduce((sum, value) => sum + value, 0)
    : null;
}

/** Peak resident bytes of this process so far (VmHWM of /proc/self/status; getrusage where that is missing). */
export async function peakResidentBytes(): Promise<number> {
  const status = await readFile("/proc/self/status", "utf8").catch(() => "");
  const kib = /^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1];
  return (kib === undefined ? process.resourceUsage().maxRSS : Number(kib)) * 1024;
}
