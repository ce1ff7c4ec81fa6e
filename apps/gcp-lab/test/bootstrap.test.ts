// The start-up script as Terraform renders it, on loop devices, with a metadata server, a Node.js mirror and a registry on loopback.
import { execFileSync } from "node:child_process";
import { existsSync, openSync, readdirSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { type Disk, Machine, noMachine } from "./support/machine.ts";
import {
  type Loopback,
  type Metadata,
  type Mirror,
  metadataServer,
  nodeMirror,
  nodeRelease,
  registry,
} from "./support/servers.ts";
import { noTerraform, renderStartup } from "./support/terraform.ts";

const reason = noMachine ?? noTerraform;
/** Large enough for the samples between head and tail. */
const SIZE = 96 << 20;
const PROMPT = 'l\'été at $(touch /tmp/never) `x` "q" \\ 100 %s';

describe.skipIf(reason)(`the start-up script${reason ? ` (skipped: ${reason})` : ""}`, () => {
  const release = reason ? { bytes: Buffer.alloc(0), sha256: "" } : nodeRelease("22.21.1");
  let script: string;
  let metadata: Metadata;
  let mirror: Mirror;
  let packages: Loopback;
  let machine: Machine;
  let data: Disk;
  let startup: string;

  beforeAll(async () => {
    script = await renderStartup({ node_sha256: release.sha256, prompt: PROMPT });
  });

  beforeEach(async () => {
    metadata = await metadataServer();
    mirror = await nodeMirror(release);
    // The registry needs to know where its k3 records, the machine needs the registry: the record is made first.
    const record = join("/tmp", `k3-lab-record-${process.pid}`);
    packages = await registry("0.1.0", record);
    machine = new Machine({ metadata: metadata.url, mirror: mirror.url, registry: packages.url });
    writeFileSync(record, "");
    k3Log = record;
    data = machine.disk(SIZE >> 20);
    machine.attach(data, "k3-lab-data");
    startup = join(machine.folder, "startup.sh");
    writeFileSync(startup, script);
  });
  let k3Log: string;

  afterEach(async () => {
    machine.close();
    await Promise.all([metadata.close(), mirror.close(), packages.close()]);
  });

  afterAll(() => {
    if (k3Log) execFileSync("rm", ["-f", k3Log]);
  });

  const boot = (env: Record<string, string> = {}) => machine.run(`bash ${startup}; exit $?`, env);
  const poke = (disk: Disk, offset: number, bytes: Uint8Array | number[] | string) => {
    const file = openSync(disk.image, "r+");
    writeSync(
      file,
      typeof bytes === "string" ? Buffer.from(bytes) : Uint8Array.from(bytes),
      0,
      undefined,
      offset,
    );
    execFileSync("blockdev", ["--flushbufs", disk.device]);
  };

  /** The disk is refused with exit 2 and not one byte of it changes. */
  async function refused(disk: Disk, message: RegExp): Promise<void> {
    const before = machine.hash(disk);
    const { code, output } = await boot();
    expect(output).toMatch(message);
    expect(output).toContain("what to do: ");
    expect(output).not.toContain("Bootstrap complete");
    expect(code).toBe(2);
    expect(machine.hash(disk)).toBe(before);
  }

  it("sets up a new machine, and changes nothing at the next boot", async () => {
    const first = await boot();
    expect(first.output).toMatch(/Bootstrap complete\n$/);
    expect(first.code).toBe(0);
    expect(machine.blkid(data, "LABEL")).toBe("k3-data");
    const uuid = machine.blkid(data, "UUID");
    const table = machine.read("etc/fstab");
    expect(table.split("\n")).toEqual([
      "LABEL=cloudimg-rootfs / ext4 defaults 0 1",
      `UUID=${uuid} /mnt/k3-data ext4 defaults,noatime,nofail,x-systemd.device-timeout=30s 0 2`,
      "",
    ]);
    expect(machine.lines(k3Log).map((line) => JSON.parse(line))).toEqual([
      ["doctor", `${machine.root}/mnt/k3-data/k3`],
    ]);
    expect(machine.lines(machine.systemctlLog)).toEqual([
      "daemon-reload",
      "daemon-reload",
      "enable k3-pipeline.service",
      "restart --no-block k3-pipeline.service",
    ]);
    expect(mirror.asked).toEqual(["/v22.21.1/node-v22.21.1-linux-x64.tar.xz"]);
    expect(readdirSync(join(machine.root, "opt/k3")).sort()).toEqual([
      "cli",
      "cli-0.1.0",
      "node",
      "node-v22.21.1-linux-x64",
    ]);

    writeFileSync(machine.systemctlLog, "");
    const asked = packages.asked.length;
    const second = await machine.run(
      `bash ${startup} && echo precious > ${machine.root}/mnt/k3-data/k3/shard && bash ${startup} && cat ${machine.root}/mnt/k3-data/k3/shard`,
    );
    expect(second.output).toMatch(/Bootstrap complete\nprecious\n$/);
    expect(second.code).toBe(0);
    expect(machine.blkid(data, "UUID")).toBe(uuid);
    expect(machine.read("etc/fstab")).toBe(table);
    expect(mirror.asked).toHaveLength(1);
    expect(packages.asked).toHaveLength(asked);
    const usual = ["daemon-reload", "enable k3-pipeline.service", "start --no-block k3-pipeline.service"];
    expect(machine.lines(machine.systemctlLog)).toEqual([...usual, ...usual]);

    const third = await machine.run(`bash ${startup} >/dev/null && cat ${machine.root}/mnt/k3-data/k3/shard`);
    expect(third).toEqual({ code: 0, output: "precious\n" });
  });

  it("hands the pipeline its arguments whole, and its exit code back", async () => {
    expect((await boot()).code).toBe(0);
    writeFileSync(k3Log, "");
    const { code } = await machine.run(`${machine.root}/usr/local/libexec/k3-pipeline`, {
      K3_FAKE_EXIT: "6",
    });
    expect(code).toBe(6);
    expect(machine.lines(k3Log).map((line) => JSON.parse(line))).toEqual([
      [
        ...["pipeline", "moonshotai/Kimi-K3", "--revision", "a590ce090cb049c93a33dfe8c208ec652aa20503"],
        ...[
          "--dir",
          `${machine.root}/mnt/k3-data/k3`,
          "--memory",
          "auto",
          "--prompt",
          PROMPT,
          "--generate",
          "8",
        ],
      ],
    ]);
  });

  it("goes on when doctor finds something", async () => {
    const { code, output } = await boot({ K3_FAKE_EXIT: "5" });
    expect(output).toContain("k3 doctor: exit 5\n");
    expect(output).toMatch(/Bootstrap complete\n$/);
    expect(code).toBe(0);
  });

  it("accepts a disk with our file system and all that is on it", async () => {
    const folder = join(machine.folder, "seed");
    execFileSync("mkdir", [folder]);
    writeFileSync(join(folder, "shard"), "from another machine");
    execFileSync("mkfs.ext4", ["-q", "-L", "k3-data", "-d", folder, data.device]);
    const { code, output } = await machine.run(`bash ${startup} && cat ${machine.root}/mnt/k3-data/shard`);
    expect(output).toMatch(/Bootstrap complete\nfrom another machine$/);
    expect(output).not.toContain("formatting");
    expect(code).toBe(0);
  });

  it("grows the file system when the disk has grown", async () => {
    expect((await boot()).code).toBe(0);
    execFileSync("truncate", ["--size=256M", data.image]);
    execFileSync("losetup", ["--set-capacity", data.device]);
    const { output } = await machine.run(
      `bash ${startup} >/dev/null; stat -f -c '%b %S' ${machine.root}/mnt/k3-data`,
    );
    const [blocks, size] = output.trim().split("\n").at(-1)!.split(" ").map(Number);
    expect(blocks! * size!).toBeGreaterThan(240 * 2 ** 20);
  });

  describe("a disk that is not blank is refused, untouched:", () => {
    it("ext4 of somebody", async () => {
      execFileSync("mkfs.ext4", ["-q", "-L", "photos", data.device]);
      await refused(data, /REFUSED: \S+ holds ext4 with label "photos", not ours/);
    });

    it("ext4 without a label", async () => {
      execFileSync("mkfs.ext4", ["-q", data.device]);
      await refused(data, /REFUSED: \S+ holds ext4/);
    });

    it("another file system or swap under our label", async () => {
      execFileSync("mkswap", ["-q", "-L", "k3-data", data.device]);
      await refused(data, /REFUSED: \S+ holds swap/);
    });

    it("an MBR partition table", async () => {
      const entry = Buffer.from([0x00, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 2, 0]);
      poke(data, 446, entry);
      poke(data, 510, [0x55, 0xaa]);
      await refused(data, /REFUSED: \S+ holds partition-table-dos/);
    });

    it.each([
      ["the first sector", 0],
      ["the first 16 MiB", (16 << 20) - 1],
      ["a sample in the middle", SIZE / 2 + 4097],
      ["the last sector", SIZE - 1],
    ])("one byte in %s", async (_where, offset) => {
      poke(data, offset, [1]);
      await refused(data, /REFUSED: \S+ has no file system, but it is not blank/);
    });

    it("a record of an interrupted formatting that is not of this disk and label", async () => {
      poke(data, 4 << 20, "somebody's bytes");
      poke(data, SIZE - 4096, `k3-lab: blank disk of ${2 * SIZE} bytes, formatting as k3-data began`);
      await refused(data, /not blank/);
    });
  });

  it("the boot disk is refused, blank or not", async () => {
    machine.attach(machine.boot, "k3-lab-data");
    await refused(machine.boot, /REFUSED: \S+ is the boot disk/);
  });

  it("a read-only disk is refused", async () => {
    const disk = machine.disk(SIZE >> 20, "--read-only");
    machine.attach(disk, "k3-lab-data");
    await refused(disk, /REFUSED: \S+ is read-only/);
  });

  it("a missing disk is exit 5, with the name that was looked for", async () => {
    execFileSync("rm", [join(machine.byId, "google-k3-lab-data")]);
    const { code, output } = await boot();
    expect(output).toContain("FAILED: no disk is attached as k3-lab-data");
    expect(code).toBe(5);
  });

  it("files under the mount point on the boot disk are not buried", async () => {
    execFileSync("mkdir", ["-p", join(machine.root, "mnt/k3-data/k3")]);
    const { code, output } = await boot();
    expect(output).toContain("REFUSED: /mnt/k3-data is not mounted, but there are files in it");
    expect(code).toBe(2);
  });

  describe("an interruption is made good at the next boot:", () => {
    it("killed within mkfs, with half a file system and no signature on the disk", async () => {
      const mkfs = machine.command(
        "mkfs-killed",
        'for device; do [[ -b $device ]] && break; done\nhead -c 3M /dev/urandom | dd of="$device" bs=1M seek=8 conv=notrunc,fsync status=none\nkill -9 $PPID',
      );
      const first = await boot({ K3_MKFS: mkfs });
      expect(first.code).toBe(137);
      expect(machine.read("etc/fstab")).not.toContain("k3-data");
      const second = await boot();
      expect(second.output).toMatch(/formatting of \S+ was interrupted; beginning again\n/);
      expect(second.output).toMatch(/Bootstrap complete\n$/);
      expect(machine.blkid(data, "LABEL")).toBe("k3-data");
      const third = await boot();
      expect(third.output).not.toContain("formatting");
      expect(third.code).toBe(0);
    });

    it("killed in the middle of the download of Node.js", async () => {
      const half = new Promise<void>((resolve) => {
        mirror.stall = resolve;
      });
      const { child, done } = machine.start(`bash ${startup}`);
      await Promise.race([half, done]);
      process.kill(-child.pid!, "SIGKILL");
      await done;
      const software = join(machine.root, "opt/k3");
      expect(readdirSync(software).filter((name) => name.startsWith(".partial"))).toHaveLength(1);
      expect(existsSync(join(software, "node"))).toBe(false);
      const second = await boot();
      expect(second.output).toMatch(/Bootstrap complete\n$/);
      expect(readdirSync(software).filter((name) => name.startsWith("."))).toEqual([]);
    });

    it("killed after the software, before the unit", async () => {
      const killer = machine.command("systemctl-killed", "kill -9 $PPID");
      expect((await boot({ K3_SYSTEMCTL: killer })).code).toBe(137);
      const { output } = await boot();
      expect(output).toMatch(/Bootstrap complete\n$/);
    });
  });

  it("a download with another hash is exit 3 and installs nothing", async () => {
    writeFileSync(startup, script.replace(release.sha256, "0".repeat(64)));
    const { code, output } = await boot();
    expect(output).toContain("another SHA-256 than node_sha256");
    expect(code).toBe(3);
    expect(existsSync(join(machine.root, "opt/k3/node"))).toBe(false);
  });

  it("two runs at once: the second ends with exit 7", async () => {
    const { output } = await machine.run(
      `mkdir -p ${machine.root}/run/lock; exec 8>${machine.root}/run/lock/k3-lab.lock; flock 8; bash ${startup}; echo "code $?"`,
    );
    expect(output).toMatch(/another run of this script is at work[\s\S]*code 7\n$/);
  });

  describe("metadata", () => {
    it("hold installs everything and starts nothing", async () => {
      metadata.values["instance/attributes/k3-pipeline"] = "hold";
      const { output } = await boot();
      expect(output).toMatch(/the pipeline is on hold[\s\S]*Bootstrap complete\n$/);
      expect(machine.lines(machine.systemctlLog).at(-1)).toBe("disable --now k3-pipeline.service");
      expect(existsSync(join(machine.root, "etc/systemd/system/k3-pipeline.service"))).toBe(true);
    });

    it("a server that is not ready yet is asked again", async () => {
      metadata.failing = 2;
      metadata.values["instance/machine-type"] = "projects/1/machineTypes/e2-standard-4";
      const { output } = await boot();
      expect(output).toContain("machine e2-standard-4 in ");
      expect(output).toMatch(/Bootstrap complete\n$/);
    });

    it.each(["instance/attributes/HF_TOKEN", "project/attributes/hf-token"])(
      "a token in %s is refused, not read",
      async (path) => {
        metadata.values[path] = "hf_thisMustNeverBeRead";
        const { code, output } = await boot();
        expect(output).toMatch(/REFUSED: the (instance|project) metadata has an attribute/);
        expect(code).toBe(2);
        expect(output).not.toContain("hf_thisMustNeverBeRead");
        expect(metadata.asked).not.toContain(`/${path}`);
      },
    );
  });
});
