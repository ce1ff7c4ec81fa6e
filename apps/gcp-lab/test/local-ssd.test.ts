// Local SSD: the trunk's place, made anew after every stop. As in bootstrap.test.ts, on loop devices.
import { execFileSync } from "node:child_process";
import { openSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
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

describe.skipIf(reason)(`local SSD${reason ? ` (skipped: ${reason})` : ""}`, () => {
  const release = reason ? { bytes: Buffer.alloc(0), sha256: "" } : nodeRelease("22.21.1");
  const scripts: Record<number, string> = {};
  let metadata: Metadata;
  let mirror: Mirror;
  let packages: Loopback;
  let machine: Machine;
  let data: Disk;

  beforeAll(async () => {
    for (const count of [1, 2]) {
      scripts[count] = await renderStartup({
        node_sha256: release.sha256,
        machine_type: "n2-standard-8",
        local_ssd_count: count,
      });
    }
  });

  beforeEach(async () => {
    metadata = await metadataServer();
    mirror = await nodeMirror(release);
    packages = await registry("0.1.0", "/dev/null");
    machine = new Machine({ metadata: metadata.url, mirror: mirror.url, registry: packages.url });
    data = machine.disk(128);
    machine.attach(data, "k3-lab-data");
    for (const [count, script] of Object.entries(scripts)) {
      writeFileSync(join(machine.folder, `startup-${count}.sh`), script);
    }
  });

  afterEach(async () => {
    machine.close();
    await Promise.all([metadata.close(), mirror.close(), packages.close()]);
  });

  const boot = (count: number, after = "", env: Record<string, string> = {}) =>
    machine.run(`bash ${machine.folder}/startup-${count}.sh || exit $?\n${after}`, env);
  const trunk = () => `${machine.root}/mnt/k3-data/k3/trunk`;

  it("holds the trunk only; a stop empties it, and the next boot makes it anew while the data disk keeps its own", async () => {
    const ssd = machine.disk(128);
    machine.attach(ssd, "local-nvme-ssd-0");
    const first = await boot(
      1,
      `echo packed > ${trunk()}/trunk.json; echo shard > ${machine.root}/mnt/k3-data/k3/shard`,
    );
    expect(first.output).toContain("LOCAL SSD: everything on it is lost when this machine stops");
    expect(first.output).toMatch(/Bootstrap complete\n$/);
    const uuid = machine.blkid(ssd, "UUID");
    expect(machine.read("etc/fstab")).toContain(`UUID=${uuid} /mnt/k3-local ext4 defaults,noatime,nofail`);
    expect(machine.read("etc/fstab")).toContain("/mnt/k3-local/trunk /mnt/k3-data/k3/trunk none bind,nofail");

    const reboot = await boot(1, `cat ${trunk()}/trunk.json ${machine.root}/mnt/k3-data/k3/shard`);
    expect(reboot.output).toMatch(/Bootstrap complete\npacked\nshard\n$/);

    const fresh = machine.disk(128);
    machine.attach(fresh, "local-nvme-ssd-0");
    const stopped = await boot(1, `ls ${trunk()} | wc -l; cat ${machine.root}/mnt/k3-data/k3/shard`);
    expect(stopped.output).toMatch(/Bootstrap complete\n0\nshard\n$/);
    expect(machine.read("etc/fstab")).not.toContain(uuid);
    expect(machine.read("etc/fstab")).toContain(`UUID=${machine.blkid(fresh, "UUID")} /mnt/k3-local `);
  });

  it("an SSD that holds something is refused, and so is one that is the boot disk", async () => {
    const ssd = machine.disk(64);
    execFileSync("mkfs.ext4", ["-q", "-L", "scratch", ssd.device]);
    machine.attach(ssd, "local-nvme-ssd-0");
    const before = machine.hash(ssd);
    const held = await boot(1);
    expect(held.output).toMatch(/REFUSED: \S+ holds ext4 with label "scratch"/);
    expect(held.code).toBe(2);
    expect(machine.hash(ssd)).toBe(before);

    machine.attach(machine.boot, "local-nvme-ssd-0");
    const boots = await boot(1);
    expect(boots.output).toMatch(/REFUSED: \S+ is the boot disk/);
    expect(boots.code).toBe(2);
  });

  it("several are striped, all blank or none", async () => {
    const disks = [machine.disk(64), machine.disk(64)];
    disks.forEach((disk, index) => {
      machine.attach(disk, `local-nvme-ssd-${index}`);
    });
    const array = join(machine.folder, "array");
    const calls = join(machine.folder, "mdadm.log");
    // The kernel of a test machine may have no RAID: the array is a third loop device.
    const stripe = machine.disk(128);
    const mdadm = machine.command("mdadm", `echo "$*" >>${calls}; ln -sfn ${stripe.device} ${array}`);
    const env = { K3_MDADM: mdadm, K3_ARRAY: array };
    const { output } = await boot(2, "", env);
    expect(output).toMatch(/Bootstrap complete\n$/);
    expect(machine.lines(calls)).toEqual([
      `--create ${array} --run --homehost=any --name=k3-local --level=0 --raid-devices=2 ${disks[0]!.device} ${disks[1]!.device}`,
    ]);
    expect(machine.blkid(stripe, "LABEL")).toBe("k3-local");

    const file = openSync(disks[1]!.image, "r+");
    writeSync(file, Buffer.from("somebody's"), 0, undefined, 1 << 20);
    execFileSync("blockdev", ["--flushbufs", disks[1]!.device]);
    const mixed = await boot(2, "", env);
    expect(mixed.output).toContain(`REFUSED: ${disks[1]!.device} is not blank`);
    expect(mixed.code).toBe(2);
    expect(machine.lines(calls)).toHaveLength(1);
  });

  it("taken away again, its lines leave /etc/fstab", async () => {
    machine.attach(machine.disk(64), "local-nvme-ssd-0");
    expect((await boot(1)).code).toBe(0);
    writeFileSync(
      join(machine.folder, "startup-0.sh"),
      scripts[1]!.replace("LOCAL_SSD_COUNT='1'", "LOCAL_SSD_COUNT='0'"),
    );
    expect((await boot(0)).code).toBe(0);
    expect(machine.read("etc/fstab")).not.toContain("k3-local");
    expect(machine.read("etc/fstab")).toContain(" /mnt/k3-data ext4 ");
  });
});
