import { spawn } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { lockFile } from "@k3/stage";
import { syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  downloading,
  expectComplete,
  failure,
  KIB,
  MIB,
  run,
  sampleFiles,
  serve,
  spawnRun,
  temporary,
  testOptions,
} from "./support.ts";

const SHARD = "model.safetensors";

const one = (bytes = 4 * MIB) => [syntheticFile(SHARD, bytes, { seed: 3 })];

describe("locks (hub.md section 7)", () => {
  it("row 15: the second of two runs on a directory ends with exit 7 and disturbs nothing", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ bps: 512 * KIB });
    const first = spawnRun(testOptions(hub, dir));
    await first.event(downloading(500_000));
    const error = await failure(hub, dir);
    expect(error).toMatchObject({ code: "E_LOCKED", exit: 7 });
    // By the lock, and not only when it comes to the part file.
    expect(error.message).toContain("another process is at work on");
    hub.clearFaults();
    expect((await first.ended).code).toBe(0);
    await expectComplete(dir, files);
  });

  it("row 15: where the lock does nothing, the journal's owner keeps the second one out", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ bps: 512 * KIB });
    const options = testOptions(hub, dir, { internals: { lock: false } });
    const first = spawnRun(options);
    await first.event(downloading(500_000));
    // One of other settings would start the file over, and must not touch it either.
    for (const segmentBytes of [256 * KIB, 128 * KIB]) {
      const error = await failure(hub, dir, { internals: { lock: false, segmentBytes } });
      expect(error).toMatchObject({ code: "E_LOCKED", exit: 7 });
      expect(error.message).toContain(`is being downloaded by process ${first.child.pid}`);
    }
    hub.clearFaults();
    expect((await first.ended).code).toBe(0);
    await expectComplete(dir, files);
    // Two that start at the same moment: one or both step back, and nothing wrong is ever published.
    const other = await temporary();
    const racing = [0, 1].map(() => spawnRun({ ...options, dir: other }).ended);
    const codes = (await Promise.all(racing)).map((ended) => ended.code);
    expect(codes.filter((code) => code !== 0 && code !== 7)).toEqual([]);
    await run(hub, other);
    await expectComplete(other, files);
  });

  it("a directory on which hf is at work is refused: its flock is seen in /proc/locks", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files);
    const dir = await temporary();
    const lock = join(dir, ".cache/huggingface/download/config.json.lock");
    await mkdir(join(lock, ".."), { recursive: true });
    await writeFile(lock, "");
    const holder = spawn("flock", ["-x", lock, "sh", "-c", "echo ok; exec cat"], {
      stdio: ["pipe", "pipe", "ignore"],
    });
    await new Promise((resolve) => holder.stdout.once("data", resolve));
    const error = await failure(hub, dir);
    expect(error).toMatchObject({ code: "E_LOCKED", exit: 7 });
    expect(error.message).toContain("config.json");
    holder.stdin.end();
    await new Promise((resolve) => holder.once("close", resolve));
    await run(hub, dir);
  });

  it("the lock is free as soon as a run has ended, well or not", async () => {
    const hub = await serve(one(300 * KIB));
    const dir = await temporary();
    await failure(hub, dir, { revision: "none" });
    await run(hub, dir);
    const lock = await lockFile(join(dir, ".cache/k3/lock"), "test");
    await lock.release();
  });
});
