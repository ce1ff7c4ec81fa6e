import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, delimiter, join } from "node:path";
import { has } from "./terraform.ts";

/** Why a machine with disks cannot be played here; undefined where it can. */
export const noMachine: string | undefined = (() => {
  if (process.platform !== "linux") return "not Linux";
  if (process.getuid?.() !== 0) return "loop devices need root";
  for (const command of [
    "losetup",
    "mkfs.ext4",
    "blkid",
    "wipefs",
    "unshare",
    "flock",
    "curl",
    "xz",
    "runuser",
  ]) {
    if (!has("which", command)) return `${command} is not installed`;
  }
  if (!has("unshare", "--mount", "true")) return "mount namespaces are not allowed here";
  const folder = mkdtempSync(join(tmpdir(), "k3-lab-probe-"));
  try {
    const image = join(folder, "image");
    writeFileSync(image, "");
    truncateSync(image, 1 << 20);
    execFileSync("losetup", [
      "--detach",
      execFileSync("losetup", ["--find", "--show", image], { encoding: "utf8" }).trim(),
    ]);
    return undefined;
  } catch {
    return "loop devices are not allowed here";
  } finally {
    rmSync(folder, { recursive: true });
  }
})();

export interface Disk {
  image: string;
  device: string;
}

export interface Run {
  code: number | null;
  /** Standard output and error, in the order of writing. */
  output: string;
}

const MiB = 1 << 20;

/** A machine of loop devices and a folder that stands for its root file system. Every boot has mounts of its own. */
export class Machine {
  readonly folder = mkdtempSync(join(tmpdir(), "k3-lab-machine-"));
  readonly root = join(this.folder, "root");
  readonly byId = join(this.folder, "by-id");
  readonly systemctlLog = join(this.folder, "systemctl.log");
  readonly k3Log = join(this.folder, "k3.log");
  readonly boot: Disk;
  #disks: Disk[] = [];
  #env: Record<string, string>;

  constructor(servers: { metadata: string; mirror: string; registry: string }) {
    for (const folder of ["root/etc", "root/run", "by-id", "bin"])
      mkdirSync(join(this.folder, folder), { recursive: true });
    writeFileSync(join(this.root, "etc/fstab"), "LABEL=cloudimg-rootfs / ext4 defaults 0 1\n");
    writeFileSync(this.systemctlLog, "");
    writeFileSync(this.k3Log, "");
    // The machine of the lab has no swap; the one that runs the tests may.
    this.command("swapon", "");
    this.boot = this.disk(64);
    const numbers = execFileSync("lsblk", ["-dnro", "MAJ:MIN", this.boot.device], {
      encoding: "utf8",
    }).trim();
    this.#env = {
      PATH: `${join(this.folder, "bin")}${delimiter}${process.env["PATH"]}`,
      HOME: this.folder,
      K3_ROOT: this.root,
      K3_BY_ID: this.byId,
      K3_USER: "root",
      K3_DEVICE_WAIT: "1",
      K3_CURL_PROTOCOLS: "=http",
      K3_METADATA_URL: servers.metadata,
      K3_NODE_MIRROR: servers.mirror,
      npm_config_registry: `${servers.registry}/`,
      K3_FINDMNT: this.command("root-findmnt", `echo '${numbers}'`),
      K3_SYSTEMCTL: this.command("systemctl", `echo "$*" >>${this.systemctlLog}`),
    };
  }

  /** A script of the test's own; returns its path. */
  command(name: string, body: string): string {
    const path = join(this.folder, "bin", name);
    writeFileSync(path, `#!/bin/bash\n${body}\n`);
    chmodSync(path, 0o755);
    return path;
  }

  disk(mebibytes: number, ...flags: string[]): Disk {
    const image = join(this.folder, `disk-${this.#disks.length}.img`);
    writeFileSync(image, "");
    truncateSync(image, mebibytes * MiB);
    const device = execFileSync("losetup", [...flags, "--find", "--show", image], {
      encoding: "utf8",
    }).trim();
    const disk = { image, device };
    this.#disks.push(disk);
    return disk;
  }

  attach(disk: Disk, name: string): void {
    rmSync(join(this.byId, `google-${name}`), { force: true });
    symlinkSync(disk.device, join(this.byId, `google-${name}`));
  }

  /** Runs commands in bash with a mount namespace of their own and an empty /run in memory, as after a boot. */
  start(commands: string, env: Record<string, string> = {}): { child: ChildProcess; done: Promise<Run> } {
    const log = join(this.folder, "output.log");
    writeFileSync(log, "");
    const descriptor = openSync(log, "a");
    const child = spawn(
      "unshare",
      ["--mount", "bash", "-c", `mount -t tmpfs none ${this.root}/run || exit 99\n${commands}`],
      {
        env: { ...this.#env, ...env },
        stdio: ["ignore", descriptor, descriptor],
        detached: true,
      },
    );
    const done = new Promise<Run>((resolve) => {
      child.on("close", (code) => resolve({ code, output: readFileSync(log, "utf8") }));
    });
    return { child, done };
  }

  run(commands: string, env: Record<string, string> = {}): Promise<Run> {
    return this.start(commands, env).done;
  }

  /** What blkid says of a disk. */
  blkid(disk: Disk, field: string): string {
    return execFileSync("blkid", ["--probe", "--output", "value", "--match-tag", field, disk.device], {
      encoding: "utf8",
    }).trim();
  }

  hash(disk: Disk): string {
    execFileSync("blockdev", ["--flushbufs", disk.device]);
    return createHash("sha256").update(readFileSync(disk.image)).digest("hex");
  }

  read(path: string): string {
    return readFileSync(join(this.root, path), "utf8");
  }

  lines(path: string): string[] {
    return readFileSync(path, "utf8").split("\n").filter(Boolean);
  }

  close(): void {
    for (const { device } of this.#disks) {
      try {
        execFileSync("losetup", ["--detach", device], { stdio: "ignore" });
      } catch {
        // Already gone.
      }
    }
    rmSync(this.folder, { recursive: true, force: true });
  }

  kernelName(disk: Disk): string {
    return basename(disk.device);
  }
}
