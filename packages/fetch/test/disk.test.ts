import { execFileSync } from "node:child_process";
import { mkdir, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  atEnd,
  downloading,
  expectComplete,
  failure,
  KIB,
  MIB,
  run,
  said,
  sampleFiles,
  serve,
  spawnRun,
  temporary,
  testOptions,
} from "./support.ts";

const SHARD = "model.safetensors";

const one = (bytes = 4 * MIB) => [syntheticFile(SHARD, bytes, { seed: 3 })];

/** A filesystem of a given size, or why there is none. */
async function smallDisk(bytes: number): Promise<string | undefined> {
  const dir = await temporary();
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", `size=${bytes}`, "tmpfs", dir], { stdio: "ignore" });
  } catch {
    return undefined;
  }
  atEnd(async () => {
    execFileSync("umount", ["-l", dir]);
  });
  return dir;
}

const mountable = await (async () => {
  try {
    const dir = "/tmp/k3-fetch-mount-probe";
    await mkdir(dir, { recursive: true });
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=1m", "tmpfs", dir], { stdio: "ignore" });
    execFileSync("umount", [dir]);
    await rm(dir, { recursive: true });
    return true;
  } catch {
    return false;
  }
})();

const needsMount = mountable ? "" : " (skipped: no right to mount a tmpfs)";

describe("interruption and full disks (hub.md section 7)", () => {
  it("row 26: SIGINT during a stall ends with exit 130 within 10 s, and the next run goes on", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ stallAt: { bytes: 3 * MIB } });
    const timing = { stall: 60_000, tailStall: 60_000, headers: 60_000 };
    const first = spawnRun(testOptions(hub, dir, { concurrency: 2, internals: { timing } }));
    await first.event(downloading(2 * MIB));
    const at = performance.now();
    first.child.kill("SIGINT");
    const { code, output } = await first.ended;
    expect(code).toBe(130);
    expect(performance.now() - at).toBeLessThan(10_000);
    expect(said(output).error).toMatchObject({ code: "E_INTERRUPTED" });
    hub.clearFaults();
    const { result } = await run(hub, dir);
    expect(result.resumed_bytes).toBeGreaterThanOrEqual(2 * MIB - 2 * 256 * KIB);
    await expectComplete(dir, files);
  });

  it("an abort before the start, while listing and while hashing ends with E_INTERRUPTED", async () => {
    const files = sampleFiles(2 * MIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    expect(await failure(hub, dir, { signal: AbortSignal.abort() })).toMatchObject({ exit: 130 });
    hub.setFaults({ hub503: true });
    expect(await failure(hub, dir, { signal: AbortSignal.timeout(30) })).toMatchObject({ exit: 130 });
    hub.clearFaults();
    await run(hub, dir);
    await rm(join(dir, ".cache"), { recursive: true });
    const stop = new AbortController();
    const error = await failure(hub, dir, {
      signal: stop.signal,
      onEvent: (event) => {
        if (event.type === "progress" && event.phase.startsWith("hashing")) stop.abort();
      },
    });
    expect(error).toMatchObject({ code: "E_INTERRUPTED", exit: 130 });
  });

  it.runIf(mountable)(
    `a disk that is too small is refused before the first byte, with both numbers${needsMount}`,
    async () => {
      const files = one(4 * MIB);
      const hub = await serve(files);
      const dir = (await smallDisk(3 * MIB))!;
      const error = await failure(hub, dir);
      expect(error).toMatchObject({ code: "E_SPACE", exit: 5 });
      expect(error.details).toMatchObject({ needed: expect.any(Number), available: expect.any(Number) });
      expect(hub.requests.filter((r) => r.path !== null)).toEqual([]);
    },
  );

  it.runIf(mountable)(
    `what is there already is not asked for again when space is counted${needsMount}`,
    async () => {
      const files = [
        syntheticFile("a.safetensors", 6 * MIB, { seed: 1 }),
        syntheticFile("b.safetensors", 6 * MIB, { seed: 2 }),
      ];
      const hub = await serve(files);
      const dir = (await smallDisk(14 * MIB))!;
      await run(hub, dir, { include: ["a*"] });
      // 8 MiB are free: enough for b alone, not for both.
      await run(hub, dir);
      await expectComplete(dir, files);
    },
  );

  it.runIf(mountable)(
    `a disk that fills up meanwhile stops the run with exit 5; with room again it goes on${needsMount}`,
    async () => {
      const files = one(12 * MIB);
      const hub = await serve(files);
      const dir = (await smallDisk(16 * MIB))!;
      const ballast = join(dir, "ballast");
      // Without fallocate in the PATH the part file is sparse, as on filesystems that cannot reserve.
      const bin = await temporary();
      await symlink(
        execFileSync("sh", ["-c", "command -v flock"], { encoding: "utf8" }).trim(),
        join(bin, "flock"),
      );
      hub.setFaults({ bps: 6 * MIB });
      const first = spawnRun(testOptions(hub, dir, { concurrency: 2 }), { env: { PATH: bin } });
      await first.event(downloading(3 * MIB));
      await writeFile(ballast, Buffer.alloc(9 * MIB)).catch(() => undefined);
      const { code, output } = await first.ended;
      expect(said(output).error).toMatchObject({ code: "E_SPACE", exit: 5 });
      expect(code).toBe(5);
      await rm(ballast);
      hub.clearFaults();
      const { result } = await run(hub, dir);
      expect(result.resumed_bytes).toBeGreaterThanOrEqual(2 * MIB);
      await expectComplete(dir, files);
    },
  );

  it.runIf(mountable)(
    `a full disk costs nothing that was written, in the middle of a segment either${needsMount}`,
    async () => {
      const files = one(12 * MIB);
      const hub = await serve(files);
      const dir = (await smallDisk(16 * MIB))!;
      hub.setFaults({ bps: 6 * MIB });
      // Sparse, as on filesystems that cannot reserve; the whole file is one segment.
      const options = { concurrency: 1, internals: { segmentBytes: 12 * MIB } };
      const path = process.env["PATH"];
      process.env["PATH"] = await temporary();
      atEnd(async () => {
        process.env["PATH"] = path;
      });
      let filled: Promise<void> | undefined;
      const error = await failure(hub, dir, {
        ...options,
        onEvent: (event) => {
          if (downloading(5 * MIB)(event))
            filled ??= writeFile(join(dir, "ballast"), Buffer.alloc(8.5 * MIB)).catch(() => undefined);
        },
      });
      expect(error).toMatchObject({ code: "E_SPACE", exit: 5 });
      const { needed, available } = error.details as { needed: number; available: number };
      expect(needed).toBeGreaterThan(3 * MIB);
      expect(needed).toBeLessThanOrEqual(8 * MIB);
      expect(available).toBeLessThan(needed);
      expect(error.message).toContain(`(${needed} bytes) are still to be written`);
      await filled;
      process.env["PATH"] = path;
      await rm(join(dir, "ballast"));
      hub.clearFaults();
      const { result } = await run(hub, dir, options);
      // Buffers of 2 MiB: what was in the one that could not be written is lost.
      expect(result.resumed_bytes).toBeGreaterThanOrEqual(4 * MIB);
      expect(result.downloaded_bytes).toBe(12 * MIB - result.resumed_bytes);
      await expectComplete(dir, files);
    },
  );

  it("a directory where a file should be, and a file where a directory should be, are named", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files);
    const dir = await temporary();
    await mkdir(join(dir, "config.json"));
    expect(await failure(hub, dir)).toMatchObject({ code: "E_USAGE", exit: 2 });
    await rm(join(dir, "config.json"), { recursive: true });
    await writeFile(join(dir, "docs"), "a file");
    expect(await failure(hub, dir)).toMatchObject({ code: "E_USAGE", exit: 2 });
    await rm(join(dir, "docs"));
    await run(hub, dir);
    expect(await failure(hub, join(dir, "config.json"))).toMatchObject({ code: "E_USAGE" });
  });
});
