import { randomBytes } from "node:crypto";
import { mkdir, mkdtemp, open, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { withTempDir } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import { makeCold } from "../src/cold.ts";
import { countedEach, sumOfKnown } from "../src/counters.ts";
import { mountOf } from "../src/machine.ts";
import {
  blockReadBytes,
  cgroupReadBytes,
  deviceNumber,
  findReadAccounts,
  parseCgroupReads,
  parseDiskstats,
  readBytesOfStat,
} from "../src/read-accounts.ts";

// Documentation/admin-guide/iostats.rst; the second form is that of partitions before Linux 2.6.25.
const DISKSTATS = `   3    0 hda 446216 784926 9550688 4382310 424847 312726 5922052 19310380 0 3376340 23705160
   3    1 hda1 35486 38030 38030 38030
 259    2 nvme0n1p2 100 0 2048 5 0 0 0 0 0 5 5 0 0 0 0 0 0
`;
// Documentation/admin-guide/cgroup-v2.rst.
const IO_STAT = `8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0
8:0 rbytes=90430464 wbytes=299008000 rios=8950 wios=1252 dbytes=50331648 dios=3021
253:0
`;
const BLKIO = `8:0 Read 84869120
8:0 Write 86016
8:0 Sync 84975616
8:0 Total 84975616
8:16 Read 4096
Total 84979712
`;

describe("what the kernel's files say", () => {
  it("sectors of a block device are 512 bytes, whatever the disk", () => {
    expect(
      readBytesOfStat("  446216 784926 9550688 4382310 424847 312726 5922052 19310380 0 3376340 23705160\n"),
    ).toBe(9550688 * 512);
    for (const broken of ["", "1 2 3", "a b c d e f g h i j k"])
      expect(readBytesOfStat(broken)).toBeUndefined();
  });

  it("diskstats has disks and partitions", () => {
    expect([...parseDiskstats(DISKSTATS)]).toEqual([
      ["3:0", { name: "hda", readBytes: 4_889_952_256 }],
      ["259:2", { name: "nvme0n1p2", readBytes: 1_048_576 }],
    ]);
  });

  it("control groups count reads per device, in both versions", () => {
    expect([...parseCgroupReads(IO_STAT)]).toEqual([
      ["8:16", 1459200],
      ["8:0", 90430464],
    ]);
    expect([...parseCgroupReads(BLKIO)]).toEqual([
      ["8:0", 84869120],
      ["8:16", 4096],
    ]);
  });

  it("a device number has 12 bits of major and 20 of minor, folded (makedev(3))", () => {
    expect(deviceNumber(0xfe00n)).toBe("254:0");
    expect(deviceNumber(0x801n)).toBe("8:1");
    expect(deviceNumber(0xfff103ffn)).toBe("259:1048575");
    expect(deviceNumber(0x2dn)).toBe("0:45");
  });
});

/** A system whose files are these, and a directory of weights on the disk of the test, known there as `name`. */
async function withSystem(
  files: (device: string) => Record<string, string>,
  use: (root: string, weights: string, device: string) => Promise<void>,
): Promise<void> {
  await withTempDir(async (dir) => {
    const [root, weights] = [join(dir, "root"), join(dir, "weights")];
    await mkdir(weights);
    await writeFile(join(weights, "model.safetensors"), "x");
    const device = (await mountOf(weights))!.device;
    for (const [path, text] of Object.entries(files(device))) {
      await mkdir(dirname(join(root, path)), { recursive: true });
      await writeFile(join(root, path), text);
    }
    await use(root, weights, device);
  });
}

const diskstats = (device: string) => `  ${device.replace(":", " ")} sdq 1 2 1000 4 5 6 7 8 9 10 11\n`;

describe("which accounts there are", () => {
  it("the device of the weights, and a version 2 group that counts its reads", () =>
    withSystem(
      (device) => ({
        "proc/diskstats": diskstats(device),
        "proc/self/cgroup": "0::/user.slice/k3\n",
        "sys/fs/cgroup/user.slice/k3/io.stat": `${device} rbytes=777 wbytes=1 rios=1 wios=1\n9:9 rbytes=5 wbytes=0\n`,
      }),
      async (root, weights, device) => {
        const accounts = await findReadAccounts([weights], { root });
        expect(accounts).toEqual({
          block: [{ device, name: "sdq" }],
          disks: [device],
          cgroup: join(root, "sys/fs/cgroup/user.slice/k3/io.stat"),
          missing: [],
        });
        expect(await blockReadBytes(accounts.block, { root })).toEqual([512_000]);
        expect(await cgroupReadBytes(accounts)).toEqual([777]);
      },
    ));

  it("a version 1 group, seen from inside a container whose path is the host's", () =>
    withSystem(
      (device) => ({
        "proc/diskstats": diskstats(device),
        "proc/self/cgroup": "7:cpu:/x\n5:blkio:/docker/0123\n0::/\n",
        "sys/fs/cgroup/blkio/blkio.throttle.io_service_bytes": `${device} Read 4096\n${device} Total 9999\n`,
      }),
      async (root, weights) => {
        const accounts = await findReadAccounts([weights], { root });
        expect(await cgroupReadBytes(accounts)).toEqual([4096]);
      },
    ));

  it("a group without an account of this device knows nothing, which is not zero bytes", () =>
    withSystem(
      (device) => ({
        "proc/diskstats": diskstats(device),
        "proc/self/cgroup": "5:blkio:/\n",
        "sys/fs/cgroup/blkio/blkio.throttle.io_service_bytes": "Total 0\n",
      }),
      async (root, weights) => {
        expect(await cgroupReadBytes(await findReadAccounts([weights], { root }))).toEqual([null]);
      },
    ));

  it("a group whose io controller is not enabled has no account, and the root's, which counts everybody, is not taken for it", () =>
    withSystem(
      (device) => ({
        "proc/diskstats": diskstats(device),
        "proc/self/cgroup": "0::/user.slice/k3\n",
        "sys/fs/cgroup/io.stat": `${device} rbytes=999999 wbytes=1 rios=1 wios=1\n`,
        "sys/fs/cgroup/user.slice/io.stat": `${device} rbytes=9999 wbytes=1 rios=1 wios=1\n`,
        "sys/fs/cgroup/user.slice/k3/memory.max": "max\n",
      }),
      async (root, weights) => {
        const accounts = await findReadAccounts([weights], { root });
        expect(accounts.cgroup).toBeNull();
        expect(accounts.missing).toEqual(["the io controller is not enabled for this control group"]);
        expect(await cgroupReadBytes(accounts)).toEqual([]);
      },
    ));

  it("a group outside of the namespace is not the one that is mounted", () =>
    withSystem(
      (device) => ({
        "proc/diskstats": diskstats(device),
        "proc/self/cgroup": "0::/../other\n",
        "sys/fs/cgroup/io.stat": `${device} rbytes=999999 wbytes=1 rios=1 wios=1\n`,
      }),
      async (root, weights) => {
        const { missing } = await findReadAccounts([weights], { root });
        expect(missing).toEqual(["no control group counts the reads of this process"]);
      },
    ));

  it("of a partition the disk counts what the group read, and its own counter what everybody did", () =>
    withSystem(
      (device) => ({
        "sys/devices/pci/block/sdq/dev": "65:0\n",
        "sys/devices/pci/block/sdq/stat": "1 2 9000 4 5 6 7 8 9 10 11\n",
        "sys/devices/pci/block/sdq/sdq2/dev": `${device}\n`,
        "sys/devices/pci/block/sdq/sdq2/partition": "2\n",
        "sys/devices/pci/block/sdq/sdq2/stat": "1 2 1000 4 5 6 7 8 9 10 11\n",
        "sys/dev/block/README": "",
        "proc/self/cgroup": "0::/k3\n",
        "sys/fs/cgroup/k3/io.stat": "65:0 rbytes=777 wbytes=1 rios=1 wios=1\n",
      }),
      async (root, weights, device) => {
        await symlink("../../devices/pci/block/sdq/sdq2", join(root, "sys/dev/block", device));
        const accounts = await findReadAccounts([weights], { root });
        expect(accounts).toMatchObject({ block: [{ device, name: "sdq2" }], disks: ["65:0"], missing: [] });
        expect(await blockReadBytes(accounts.block, { root })).toEqual([512_000]);
        expect(await cgroupReadBytes(accounts)).toEqual([777]);
      },
    ));

  it("a disk that the group has no account of after the run makes the sum unknown; one without before began at nothing", () => {
    expect(sumOfKnown(countedEach([100, null], [150, null]))).toBeNull();
    expect(sumOfKnown(countedEach([100, null], [150, 7]))).toBe(57);
    expect(sumOfKnown([])).toBeNull();
  });

  it("where there is no block device it is said, with the file and the filesystem", () =>
    withSystem(
      () => ({ "proc/diskstats": "" }),
      async (root, weights, device) => {
        const { block, disks, cgroup, missing } = await findReadAccounts([weights], { root });
        expect({ block, disks, cgroup }).toEqual({ block: [], disks: [], cgroup: null });
        expect(missing).toEqual([
          `no block statistics for ${join(weights, "model.safetensors")}: it lies on ${(await mountOf(weights))!.type}, which has no block device of its own (${device})`,
          "no control group counts the reads of this process",
        ]);
      },
    ));

  it("follows links to the disk where the bytes are", () =>
    withTempDir(async (dir) => {
      await symlink("/proc/version", join(dir, "model.safetensors"));
      const { block, missing } = await findReadAccounts([dir]);
      expect(block).toEqual([]);
      expect(missing[0]).toContain("it lies on proc");
    }));
});

const here = (await findReadAccounts([tmpdir()])).block;
const title = `on this machine${here.length > 0 ? "" : ` (skipped: ${tmpdir()} lies on no block device)`}`;

describe.skipIf(here.length === 0)(title, () => {
  it("a cold read moves the device's counter by its bytes, and a warm one moves that of the process no more", async () => {
    const dir = await mkdtemp(join(tmpdir(), "k3-accounts-"));
    try {
      const path = join(dir, "weights.bin");
      const file = await open(path, "w");
      await file.write(randomBytes(2 ** 23));
      await file.sync();
      await file.close();
      await makeCold("evict", [dir]);
      const { block } = await findReadAccounts([dir]);
      const count = async () => ({
        disk: (await blockReadBytes(block)).reduce<number>((sum, bytes) => sum + bytes!, 0),
        process: Number(/^read_bytes: (\d+)$/m.exec(await readFile("/proc/self/io", "utf8"))![1]),
      });
      const before = await count();
      await readFile(path);
      const cold = await count();
      expect(cold.disk - before.disk).toBeGreaterThanOrEqual(2 ** 23);
      expect(cold.process - before.process).toBeGreaterThanOrEqual(2 ** 23);
      await readFile(path);
      expect((await count()).process - cold.process).toBeLessThan(2 ** 20);
    } finally {
      await rm(dir, { recursive: true, force: true });
    }
  });
});
