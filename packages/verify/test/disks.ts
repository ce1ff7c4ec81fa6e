// Filesystems of a test's own, disks that misbehave, and programs of the system. Each disk says why it cannot be had where it cannot.
import { execFile, execFileSync } from "node:child_process";
import { closeSync, constants, mkdtempSync, openSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { onTestFinished } from "vitest";

const run = (command: string, ...args: string[]) =>
  execFileSync(command, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] }).trim();

export const sha256sum = (path: string) => run("sha256sum", path).slice(0, 64);

const lastLine = (error: unknown) => (error as Error).message.trim().split("\n").at(-1)!;

/** Why files of the temporary directory cannot be read directly; undefined when they can. */
export function noDirectReads(): string | undefined {
  const dir = mkdtempSync(join(tmpdir(), "k3-verify-"));
  try {
    writeFileSync(join(dir, "file"), "x");
    closeSync(openSync(join(dir, "file"), constants.O_RDONLY | constants.O_DIRECT));
    return undefined;
  } catch (error) {
    return `${tmpdir()} refuses O_DIRECT: ${lastLine(error)}`;
  } finally {
    rmSync(dir, { recursive: true });
  }
}

/** A mounted directory, unmounted after the test; a string says why there is none. */
function mounted(mount: (dir: string) => () => void): { dir: string } | string {
  if (process.getuid?.() !== 0) return "mounting needs root";
  const dir = mkdtempSync(join(tmpdir(), "k3-verify-mount-"));
  try {
    const undo = mount(dir);
    onTestFinished(() => {
      run("umount", dir);
      undo();
      rmSync(dir, { recursive: true });
    });
    return { dir };
  } catch (error) {
    rmSync(dir, { recursive: true });
    return `it cannot be mounted here: ${lastLine(error)}`;
  }
}

/** A filesystem that refuses O_DIRECT. */
export const mountRamfs = () =>
  mounted((dir) => {
    run("mount", "-t", "ramfs", "ramfs", dir);
    return () => undefined;
  });

/** ext4 with blocks of 4096 bytes in a file, the image. */
export function mountExt4(bytes: number): { dir: string; image: string } | string {
  let image = "";
  const mount = mounted((dir) => {
    image = `${dir}.img`;
    try {
      run("truncate", "-s", String(bytes), image);
      run("mkfs.ext4", "-q", "-b", "4096", image);
      run("mount", "-o", "loop", image, dir);
    } catch (error) {
      rmSync(image, { force: true });
      throw error;
    }
    return () => rmSync(image);
  });
  return typeof mount === "string" ? mount : { ...mount, image };
}

/** Where in the image the block of a file lies that holds this byte. */
export function placeInImage(image: string, path: string, byte: number): number {
  const block = Number(run("debugfs", "-R", `bmap ${path} ${Math.floor(byte / 4096)}`, image));
  if (!(block > 0)) throw new Error(`${path} has no block at ${byte}`);
  return block * 4096 + (byte % 4096);
}

const PROGRAM = new URL("../../engine/test/faults/bad-disk.cc", import.meta.url).pathname;

/** The environment in which weights are read from a disk that misbehaves, as the engine's tests have it. */
export async function badDisk(settings: Record<string, string>): Promise<NodeJS.ProcessEnv> {
  const dir = mkdtempSync(join(tmpdir(), "k3-verify-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const library = join(dir, "bad-disk.so");
  const flags = ["-std=c++20", "-shared", "-fPIC", PROGRAM, "-o", library, "-ldl"];
  await promisify(execFile)(process.env["CXX"] ?? "c++", flags);
  return { ...process.env, LD_PRELOAD: library, ...settings };
}
