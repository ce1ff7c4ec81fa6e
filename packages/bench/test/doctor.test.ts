import { execFileSync, spawn } from "node:child_process";
import { mkdir, mkdtemp, readdir, rm, stat, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { StageEvent } from "@k3/stage";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { filesystemFeatures, takesLargeFiles } from "../src/filesystem.ts";
import { doctor, probeDisk } from "../src/index.ts";
import { usualTrunkDirectory } from "../src/places.ts";
import { packedModel, quick } from "./packed-model.ts";

let { dir, model, trunk, packedBytes } = {} as Awaited<ReturnType<typeof packedModel>>;
beforeAll(async () => {
  ({ dir, model, trunk, packedBytes } = await packedModel());
}, 300_000);
afterAll(() => rm(dir, { recursive: true, force: true }));

describe("doctor and probe", { timeout: 120_000 }, () => {
  it("measures the disk and leaves nothing behind", async () => {
    const probe = await probeDisk(dir, { seconds: 0.6, scratchBytes: 2 ** 26 });
    for (const rate of [probe.sequential, probe.scattered, probe.mixed]) expect(rate).toBeGreaterThan(1e6);
    expect((await readdir(dir)).filter((name) => name.startsWith(".k3-probe"))).toEqual([]);
  });

  it("says what comes next for a checkpoint that is there, with the Hub out of reach", async () => {
    const result = await doctor({ dir: model, ...quick });
    expect(result).toMatchObject({ ok: true, exit: 0, next_command: `k3 pack ${model} ${model}-trunk` });
    expect(result.findings).toContainEqual(
      expect.objectContaining({ level: "warn", message: expect.stringContaining("127.0.0.1:9") }),
    );
  });

  it("a full disk or a quota is no limit on the length of files", () => {
    // ftruncate(2): EFBIG and EINVAL mean that the length is larger than the maximum.
    expect(["EFBIG", "EINVAL"].map(takesLargeFiles)).toEqual([false, false]);
    expect(["ENOSPC", "EDQUOT", "EIO"].map(takesLargeFiles)).toEqual([null, null, null]);
  });

  it("tries nothing once told to stop, and says that it tries before", async () => {
    const messages: unknown[] = [];
    const onEvent = (event: StageEvent) => messages.push(event);
    const before = await readdir(dir);
    const signal = AbortSignal.abort();
    await expect(filesystemFeatures(dir, { signal, onEvent })).rejects.toMatchObject({ name: "AbortError" });
    expect(messages).toEqual([]);
    expect(await readdir(dir)).toEqual(before);
    await filesystemFeatures(dir, { onEvent });
    expect(messages).toMatchObject([{ type: "log", message: `trying what the filesystem of ${dir} does` }]);
  });

  it("tries what the filesystem does, leaves nothing behind, and says where nothing can be written", async () => {
    const features = await filesystemFeatures(dir);
    // Of ext4, XFS, btrfs and tmpfs, one of which every place where tests run is.
    expect(features).toEqual({ large_files: true, holes: true, replaces: true });
    expect((await readdir(dir)).filter((name) => name.startsWith(".k3-try"))).toEqual([]);
    expect(await filesystemFeatures("/sys")).toBeNull();
    const nowhere = await doctor({ dir: "/sys/none", ...quick });
    expect(nowhere).toMatchObject({ ok: false, exit: 5, disks: [] });
    expect(nowhere.findings).toContainEqual(expect.objectContaining({ message: "/sys cannot be written" }));
    const built = join(import.meta.dirname, "../dist/filesystem.js");
    const code = `import { filesystemFeatures, takesLargeFiles } from "${built}"; console.log(JSON.stringify(await filesystemFeatures("${dir}")));`;
    // A limit on the size of files refuses them as FAT does: blocks of 512 bytes.
    const limited = [
      "-c",
      'ulimit -f 8000000 && exec "$@"',
      "sh",
      process.execPath,
      "--input-type=module",
      "-e",
      code,
    ];
    expect(JSON.parse(execFileSync("sh", limited, { encoding: "utf8" }))).toMatchObject({
      large_files: false,
    });
    const { disks, findings } = await doctor({
      dir: model,
      ...quick,
    });
    expect(disks[0]!.features).toEqual(features);
    expect(findings).toContainEqual({
      level: "ok",
      message: expect.stringContaining("takes files of 20.0 GB, leaves their holes empty"),
    });
  });

  it("is not ok where 1.6 TB are missing, with both numbers", async () => {
    const result = await doctor({
      dir: join(dir, "empty"),
      ...quick,
    });
    const space = result.findings.find(({ message }) => message.includes("of disk needed"));
    // The released model needs more than this machine's disk has in any place where tests run; if not, the Hub is in the way.
    expect(result.ok).toBe(false);
    if (space) expect(space.message).toMatch(/\(\d+ bytes\) of disk needed for .*, .* \(\d+ bytes\) free/);
    expect(result.findings).toContainEqual(
      expect.objectContaining({ level: "error", message: expect.stringContaining("does not answer") }),
    );
  });
});

/** A filesystem of memory, which Linux has in most places. */
const OTHER_DISK = "/dev/shm";
const otherDisk = await Promise.all([stat(OTHER_DISK), stat(tmpdir())]).then(
  ([other, here]) => other.dev !== here.dev,
  () => false,
);
if (!otherDisk) console.warn(`skipped: doctor on two disks, for ${OTHER_DISK} is no second one here`);

describe.skipIf(!otherDisk)("doctor on two disks", { timeout: 120_000 }, () => {
  let other: string;
  beforeAll(async () => {
    other = await mkdtemp(join(OTHER_DISK, "k3-doctor-"));
  });
  afterAll(() => rm(other, { recursive: true, force: true }));

  it("measures each, and asks of each what is yet to come to it", async () => {
    const { disks, budget, findings, next_command } = await doctor({
      dir: model,
      trunkDir: join(other, "trunk"),
      ...quick,
    });
    expect(disks.map(({ path, holds }) => ({ path, holds }))).toEqual([
      { path: model, holds: ["checkpoint"] },
      { path: other, holds: ["trunk"] },
    ]);
    expect(disks[0]!.needed_bytes).toBe(0);
    expect(disks[1]!.needed_bytes / packedBytes).toBeGreaterThan(0.9);
    expect(disks[1]!.needed_bytes / packedBytes).toBeLessThan(1.1);
    for (const { sequential, scattered, mixed } of disks)
      for (const rate of [sequential, scattered, mixed]) expect(rate).toBeGreaterThan(1e6);
    expect(budget).toMatchObject({ bound: expect.any(String), token_seconds: expect.any(Number) });
    expect(next_command).toBe(`k3 pack ${model} ${other}/trunk`);
    expect(findings).toContainEqual(
      expect.objectContaining({ level: "warn", message: expect.stringContaining(`${other} is on tmpfs`) }),
    );
    expect(await readdir(other)).toEqual([]);
  });

  it("is not ok where only the trunk has no room, and says what could not be measured", async ({ skip }) => {
    const small = join(dir, "small");
    await mkdir(small);
    try {
      execFileSync("mount", ["-t", "tmpfs", "-o", "size=2M", "none", small], { stdio: "ignore" });
    } catch {
      skip("only root can mount a small disk");
    }
    try {
      const result = await doctor({ dir: model, trunkDir: join(small, "trunk"), ...quick });
      expect(result).toMatchObject({ ok: false, exit: 5, budget: null });
      expect(result.disks.map(({ path }) => path)).toEqual([model]);
      const messages = (level: string) =>
        result.findings.filter((finding) => finding.level === level).map(({ message }) => message);
      const needed =
        /^.* \(\d+ bytes\) of disk needed for trunk in .*small, 2\.10 MB \(2097152 bytes\) free$/;
      expect(messages("error")).toEqual([expect.stringMatching(needed)]);
      expect(messages("warn")).toContainEqual(expect.stringContaining(`${small} could not be measured`));
      expect(result.next_command).toBe(`k3 doctor ${model} --trunk ${small}/trunk`);
    } finally {
      execFileSync("umount", [small]);
    }
  });

  it("finds the disk that a link in the checkpoint leads to", async () => {
    const linked = join(dir, "linked");
    await mkdir(linked);
    for (const name of await readdir(model)) await symlink(join(model, name), join(linked, name));
    const shard = (await readdir(model)).find((name) => name.endsWith(".safetensors"))!;
    execFileSync("cp", [join(model, shard), other]);
    await rm(join(linked, shard));
    await symlink(join(other, shard), join(linked, shard));
    const { disks } = await doctor({ dir: linked, trunkDir: trunk, ...quick });
    expect(disks.map(({ path, holds }) => ({ path, holds }))).toEqual([
      { path: linked, holds: ["checkpoint", "trunk"] },
      { path: other, holds: ["checkpoint"] },
    ]);
    expect(disks.map(({ needed_bytes }) => needed_bytes)).toEqual([0, 0]);
  });

  it("puts the trunk into a directory that is a disk of its own, for beside it is another disk", async () => {
    expect(await usualTrunkDirectory(OTHER_DISK)).toBe(`${OTHER_DISK}/trunk`);
  });
});

describe("a scratch file", () => {
  it("leaves nothing behind when the process is killed while it writes or reads it", async () => {
    const place = join(dir, "scratch");
    await mkdir(place);
    const built = join(import.meta.dirname, "../dist/index.js");
    for (const phase of ["writing", "measuring"]) {
      const code = `import { probeDisk } from "${built}"; await probeDisk("${place}", { seconds: 60, scratchBytes: 2 ** 27, onEvent: (event) => console.log(event.phase) });`;
      const child = spawn(process.execPath, ["--input-type=module", "-e", code]);
      child.stdout.on("data", (text: Buffer) => text.includes(phase) && child.kill("SIGKILL"));
      const signal = await new Promise((done) => child.once("close", (_, signal) => done(signal)));
      expect(signal).toBe("SIGKILL");
      expect(await readdir(place)).toEqual([]);
    }
  });
});
