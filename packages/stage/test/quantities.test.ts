import { setTimeout } from "node:timers/promises";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import {
  formatBytes,
  formatSeconds,
  Meter,
  type ProgressEvent,
  parseRate,
  parseSize,
  type StageEvent,
} from "../src/index.ts";

describe("parseSize", () => {
  it.each([
    ["16GB", 16e9],
    ["14GiB", 14 * 2 ** 30],
    ["512M", 512e6],
    ["4096", 4096],
    ["2.5GB", 2.5e9],
    ["1kb", 1000],
    ["1.56TB", 1.56e12],
  ])("%s", (text, bytes) => expect(parseSize(text)).toBe(bytes));

  it.each(["", "-1", "12XB", "1.5", "GB", "1e9", "0x10", "1 2", "99999999PB"])("refuses %j", (text) => {
    expect(() => parseSize(text)).toThrowError(expect.objectContaining({ code: "E_USAGE" }));
  });
});

describe("parseRate", () => {
  it.each([
    ["50MB", 50e6],
    ["240MB/s", 240e6],
    ["1Gbit", 125e6],
    ["100Mbit/s", 12.5e6],
    ["1Gbps", 125e6],
    ["240Mbps", 30e6],
    ["240MBps", 240e6],
    ["80 kbits/s", 10e3],
  ])("%s", (text, rate) => expect(parseRate(text)).toBe(rate));

  it.each(["0", "fast", "1Gbyte", "240Mb/s", "240mb", "1Gb", "1gb/s"])("refuses %j", (text) => {
    expect(() => parseRate(text)).toThrowError(expect.objectContaining({ code: "E_USAGE" }));
  });
});

describe("formatting", () => {
  it.each([
    [812, "812 B"],
    [1e3, "1.00 kB"],
    [17_547_264, "17.5 MB"],
    [1_560_860_324_864, "1.56 TB"],
    [999_999, "1.00 MB"],
  ])("%d bytes", (bytes, text) => expect(formatBytes(bytes)).toBe(text));

  it.each([
    [0.0142, "14 ms"],
    [0.00035, "0.35 ms"],
    [0.424, "0.42 s"],
    [38.2, "38 s"],
    [902.53, "15 min 03 s"],
    [12_000, "3 h 20 min"],
    [187_200, "2 d 04 h"],
  ])("%d seconds", (seconds, text) => expect(formatSeconds(seconds)).toBe(text));

  it("never shows 60 minutes or 1000 of a unit", () => {
    fc.assert(
      fc.property(fc.double({ min: 0, max: 1e15, noNaN: true }), (value) => {
        expect(formatSeconds(value)).not.toMatch(/\b60 (s|min)/);
        expect(formatBytes(value)).not.toMatch(/^1000/);
      }),
    );
  });
});

describe("Meter", () => {
  it("tells done, total and phase, and leaves resumed bytes out of the rate", () => {
    const events: ProgressEvent[] = [];
    const meter = new Meter({
      stage: "fetch",
      phase: "downloading",
      unit: "bytes",
      total: 100,
      initial: 60,
      onEvent: (event) => event.type === "progress" && events.push(event),
    });
    meter.emit();
    meter.add(40);
    meter.emit();
    expect(events[0]).toMatchObject({
      stage: "fetch",
      phase: "downloading",
      done: 60,
      total: 100,
      unit: "bytes",
      rate: null,
    });
    expect(events.at(-1)).toMatchObject({ done: 100 });
  });

  it("leaves corrections out of the rate, whenever they come", async () => {
    let last: ProgressEvent | undefined;
    const onEvent = (event: StageEvent) => {
      if (event.type === "progress") last = event;
    };
    const meter = new Meter({ stage: "fetch", phase: "", unit: "bytes", total: 2e9, onEvent });
    await setTimeout(250);
    meter.correct(1e9);
    meter.add(100);
    meter.emit();
    expect(last).toMatchObject({ done: 1e9 + 100 });
    // 100 bytes in no less than 250 ms.
    expect(last!.rate).toBeGreaterThan(0);
    expect(last!.rate).toBeLessThanOrEqual(400);
    meter.correct(-5e8);
    meter.emit();
    expect(last!.done).toBe(5e8 + 100);
    expect(last!.rate).toBeGreaterThan(0);
  });
});
