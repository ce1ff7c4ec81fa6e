import { realpath, stat } from "node:fs/promises";
import { dirname } from "node:path";
import { availableBytes, formatBytes, nearestDirectory, StageError, type StageOptions } from "@k3/stage";
import { type FilesystemFeatures, filesystemFeatures, LARGE_FILE } from "./filesystem.ts";
import type { Finding } from "./findings.ts";
import { mountOf } from "./machine.ts";
import type { Place } from "./places.ts";
import { type DiskProbe, probeDisk } from "./probe.ts";

/** A disk (a device with a filesystem) that holds a part of the model or will, measured. */
export interface MeasuredDisk extends DiskProbe {
  /** A directory on it. */
  path: string;
  holds: Place["holds"][];
  filesystem: string | null;
  /** Null where nothing can be written. */
  features: FilesystemFeatures | null;
  free_bytes: number;
  /** What is yet to be written to it. */
  needed_bytes: number;
  summary: string;
}

/** A disk before it is measured. */
interface Disk {
  path: string;
  holds: Place["holds"][];
  neededBytes: number;
  /** The largest file of the model on it that is long enough to be read at random. */
  file: { path: string; size: number } | undefined;
}

/** Shorter files are soon read a second time, and the disk may answer from its own cache. */
const LONG_ENOUGH = 256e6;

/** The disks that the places lie on, each once: also those that links in the checkpoint lead to. */
export async function disksOf(places: readonly Place[]): Promise<Disk[]> {
  const disks = new Map<number, Disk>();
  const diskAt = (path: string, device: number, holds: Place["holds"]) => {
    const disk = disks.get(device) ?? { path, holds: [], neededBytes: 0, file: undefined };
    if (!disk.holds.includes(holds)) disk.holds.push(holds);
    disks.set(device, disk);
    return disk;
  };
  for (const { dir, holds, neededBytes } of places) {
    const path = await nearestDirectory(dir);
    diskAt(path, (await stat(path)).dev, holds).neededBytes += neededBytes;
  }
  for (const { files, holds } of places) {
    for (const file of files) {
      const { dev, size, blocks } = await stat(file);
      const disk = diskAt(dirname(await realpath(file)), dev, holds);
      // What a file has of holes is answered by nobody's disk.
      const whole = blocks * 512 >= 0.99 * size;
      if (whole && size >= Math.max(LONG_ENOUGH, (disk.file?.size ?? 0) + 1))
        disk.file = { path: file, size };
    }
  }
  return [...disks.values()];
}

/** Measures a disk and judges it. Null where nothing can be measured: nothing to read, and nothing can be written. */
export async function examineDisk(
  disk: Disk,
  options: StageOptions & { seconds: number; scratchBytes: number },
): Promise<{ measured: MeasuredDisk | null; findings: Finding[] }> {
  const { path, holds, neededBytes: needed } = disk;
  const free = await availableBytes(path);
  const mount = await mountOf(path);
  const type = mount?.type ?? "the filesystem";
  const findings = [spaceFinding(disk, free)];
  if (/^(nfs|cifs|smb|fuse|9p|lustre)/.test(type))
    findings.push({
      level: "warn",
      message: `${path} is on ${type}: locks and O_DIRECT may not work there`,
      hint: "use a local disk",
    });
  if (/^(tmpfs|ramfs)/.test(type))
    findings.push({
      level: "warn",
      message: `${path} is on ${type}: what it holds is taken from memory, and lost when the machine stops`,
      hint: "use a disk",
    });
  const features = await filesystemFeatures(path, options);
  findings.push(...featureFindings(disk, type, features));
  if (features === null && disk.file === undefined) return { measured: null, findings };
  const probe = await probeDisk(path, { ...options, file: disk.file?.path }).catch((error: unknown) => {
    if (!hinders(error)) throw error;
    return error;
  });
  if (probe instanceof Error) {
    findings.push({ level: "warn", message: `${path} could not be measured: ${probe.message}` });
    return { measured: null, findings };
  }
  if (!probe.direct)
    findings.push({
      level: "warn",
      message: `${type} of ${path} refuses O_DIRECT: rates are upper bounds, and reads are buffered`,
    });
  const rates = (["sequential", "scattered", "mixed"] as const)
    .map((kind) => `${kind} ${formatBytes(probe[kind])}/s`)
    .join(", ");
  const summary = `${path} (${mount?.type ?? "unknown filesystem"}, for ${holds.join(" and ")}): ${rates}, ${spaceOf(free)} free`;
  const measured = {
    ...probe,
    path,
    holds,
    filesystem: mount?.type ?? null,
    features,
    free_bytes: free,
    needed_bytes: needed,
    summary,
  };
  return { measured, findings };
}

/** Some filesystems do not say how large they are. */
const spaceOf = (bytes: number) => (Number.isFinite(bytes) ? formatBytes(bytes) : "nobody knows how much");

/** Whether measuring failed for what the disk is like: too little space for a scratch file, or an error of the system. */
const hinders = (error: unknown): error is Error =>
  error instanceof StageError ? error.code === "E_SPACE" : error instanceof Error && "errno" in error;

function spaceFinding({ path, holds, neededBytes: needed }: Disk, free: number): Finding {
  const what = `${holds.join(" and ")} in ${path}`;
  if (free >= needed)
    return {
      level: "ok",
      message: `${spaceOf(free)} of disk free, ${formatBytes(needed)} needed for what is yet to come of ${what}`,
    };
  return {
    level: "error",
    message: `${formatBytes(needed)} (${needed} bytes) of disk needed for ${what}, ${formatBytes(free)} (${free} bytes) free`,
    hint: `take a disk with ${formatBytes(needed - free)} more, or another directory${holds.includes("trunk") ? " (of the trunk: --trunk)" : ""}`,
  };
}

/** What is there already may have no file that a small limit would refuse. */
function featureFindings(
  { path, holds, neededBytes }: Disk,
  type: string,
  features: FilesystemFeatures | null,
): Finding[] {
  const inTheWay = neededBytes > 0 ? ("error" as const) : ("warn" as const);
  if (features === null) {
    const hint = holds.includes("checkpoint")
      ? "give a directory of yours, or with --trunk another place to the trunk"
      : "give another place with --trunk";
    return [{ level: inTheWay, message: `${path} cannot be written`, ...(neededBytes > 0 ? { hint } : {}) }];
  }
  const { large_files, holes, replaces } = features;
  const size = formatBytes(LARGE_FILE);
  const hint = "use ext4, XFS or another filesystem of Linux";
  const faults: Finding[] = [];
  if (large_files === null)
    faults.push({
      level: "warn",
      message: `whether ${type} takes files of ${size} could not be tried in ${path}`,
      hint: "look for a full disk, a quota or errors of the disk, and ask again",
    });
  else if (!large_files)
    faults.push({ level: inTheWay, message: `${type} of ${path} takes no files of ${size}`, hint });
  else if (!holes)
    faults.push({
      level: "warn",
      message: `${type} of ${path} fills the holes of files: a download takes all its space at once`,
    });
  if (!replaces)
    faults.push({
      level: "error",
      message: `${type} of ${path} does not replace a file in one step and sync its directory`,
      hint,
    });
  const fine = `${type} of ${path} takes files of ${size}, leaves their holes empty and replaces files in one step`;
  return faults.length > 0 ? faults : [{ level: "ok", message: fine }];
}
