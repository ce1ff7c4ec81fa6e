import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";

const run = (command: string, ...args: string[]) =>
  execFileSync(command, args, { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).trim();

/** Whether this process can mount file systems: only root can, and not in every container. */
export const canMount = ((): boolean => {
  if (process.getuid?.() !== 0) return false;
  const dir = mkdtempSync(join(tmpdir(), "k3-pack-probe-"));
  try {
    run("mount", "-t", "tmpfs", "-o", "size=4096", "tmpfs", dir);
    run("umount", dir);
    return true;
  } catch {
    return false;
  } finally {
    rmSync(dir, { recursive: true });
  }
})();

function mountPoint(): string {
  return mkdtempSync(join(tmpdir(), "k3-pack-mount-"));
}

function unmountAfterwards(dir: string, ...more: (() => unknown)[]): string {
  onTestFinished(async () => {
    run("umount", dir);
    for (const undo of more) await undo();
    await rm(dir, { recursive: true });
  });
  return dir;
}

/** A file system in memory of so many bytes. */
export function mountTmpfs(bytes: number): string {
  const dir = mountPoint();
  run("mount", "-t", "tmpfs", "-o", `size=${bytes}`, "tmpfs", dir);
  return unmountAfterwards(dir);
}

/** A file system that refuses O_DIRECT. */
export function mountRamfs(): string {
  const dir = mountPoint();
  run("mount", "-t", "ramfs", "ramfs", dir);
  return unmountAfterwards(dir);
}

/** ext4 on a loop device with sectors of 4096 bytes, or undefined where there are no loop devices. */
export function mount4Kn(bytes: number): string | undefined {
  const dir = mountPoint();
  const image = `${dir}.img`;
  run("truncate", "-s", String(bytes), image);
  let device: string;
  try {
    device = run("losetup", "--sector-size", "4096", "--find", "--show", image);
  } catch {
    rmSync(image);
    rmSync(dir, { recursive: true });
    return undefined;
  }
  run("mkfs.ext4", "-q", "-F", device);
  run("mount", device, dir);
  return unmountAfterwards(
    dir,
    () => run("losetup", "--detach", device),
    () => rm(image),
  );
}
