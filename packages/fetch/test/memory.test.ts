import { getEventListeners } from "node:events";
import { syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import { expectComplete, failure, MIB, run, serve, spawnRun, temporary, testOptions } from "./support.ts";

describe("memory and a slow disk (hub.md section 7)", () => {
  it("row 10: 16 connections before a slow disk stay under 300 MB, and are made fewer", async () => {
    const files = [0, 1].map((i) => syntheticFile(`model-${i}.safetensors`, 160 * MIB, { seed: i + 1 }));
    const hub = await serve(files);
    const dir = await temporary();
    // Each write takes a tenth of a second longer than it should: two at a time, that is 40 MB/s.
    const before = `
      const { open, readFile } = await import("node:fs/promises");
      const { setTimeout } = await import("node:timers/promises");
      const probe = await open("/dev/null");
      const proto = Object.getPrototypeOf(probe);
      await probe.close();
      const original = proto.write;
      proto.write = async function (...args) {
        await setTimeout(100);
        return original.apply(this, args);
      };
      const { readFileSync } = await import("node:fs");
      process.on("exit", () => {
        const peak = Number(/VmHWM:\\s+(\\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]) * 1024;
        process.stdout.write("\\n" + JSON.stringify({ peak }) + "\\n");
      });`;
    const options = testOptions(hub, dir, { concurrency: 16 });
    options.internals = { timing: { adapt: 500, progress: 50 } }; // real segments, real times
    const { code, output } = await spawnRun(options, { before }).ended;
    expect(code).toBe(0);
    const lines = output
      .trim()
      .split("\n")
      .filter(Boolean)
      .map((line) => JSON.parse(line));
    expect(lines.at(-1).peak).toBeLessThan(300e6);
    const allowed = lines.flatMap((l) =>
      l.event?.detail?.connections_allowed ? [l.event.detail.connections_allowed] : [],
    );
    expect(Math.min(...allowed)).toBeLessThan(16);
    expect(Math.min(...allowed)).toBeGreaterThanOrEqual(2);
    await expectComplete(dir, files);
  });

  it("a caller's signal that lives on keeps nothing of a run that has ended", async () => {
    const hub = await serve();
    const { signal } = new AbortController();
    await run(hub, await temporary(), { signal });
    hub.setFaults({ hub429: { t: 3600 } });
    await failure(hub, await temporary(), { signal });
    expect(getEventListeners(signal, "abort")).toEqual([]);
  });
});
