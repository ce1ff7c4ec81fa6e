import { afterEach, expect, it, vi } from "vitest";
import { MemorySamples } from "../src/memory-samples.ts";

afterEach(() => void vi.useRealTimers());

it.each([60, 3 * 3600])(
  "keeps few samples of a run of %i s, evenly from its beginning to its end",
  (length) => {
    vi.useFakeTimers({ toFake: ["setInterval", "clearInterval", "performance"] });
    const samples = new MemorySamples();
    vi.advanceTimersByTime(length * 1000);
    const seconds = samples.end().map(([time]) => time);
    expect(seconds.length).toBeGreaterThan(256);
    expect(seconds.length).toBeLessThanOrEqual(512);
    expect([seconds[0], seconds.at(-1)]).toEqual([0, length]);
    const steps = seconds.slice(1).map((time, index) => time - seconds[index]!);
    expect(Math.min(...steps.slice(0, -1))).toBeGreaterThan(length / 1024);
    expect(Math.max(...steps)).toBeLessThan(length / 128);
  },
);
