import { open, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { encodeRecord, readJournal, type StageEvent } from "@k3/stage";
import { fileBytes, syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import type { FetchOptions } from "../src/options.ts";
import {
  downloading,
  expectComplete,
  failure,
  MIB,
  run,
  said,
  sentFor,
  serve,
  slowSyncs,
  spawnRun,
  temporary,
  testOptions,
} from "./support.ts";

const PATH = "model.safetensors";
const SEGMENT = 4 * MIB;
/** Not on the boundary of a buffer, nor of a segment: 2.3 MB into the second one. */
const STOP = SEGMENT + 2_300_001;
const internals = { segmentBytes: SEGMENT };

const files = [syntheticFile(PATH, 8 * MIB, { seed: 21 })];

async function paths(dir: string): Promise<{ part: string; journal: string }> {
  const parts = join(dir, ".cache/k3/parts");
  const names = await readdir(parts);
  const named = (end: string) => join(parts, names.find((name) => name.endsWith(end))!);
  return { part: named(".part"), journal: named(".journal") };
}

const prefixes = async (journal: string) =>
  (await readJournal(journal)).records.filter((entry) => "p" in (entry as object)) as {
    p: number;
    n: number;
    c: string;
  }[];

/** A run over one connection that has received exactly STOP bytes and waits for more when it is stopped by `signal`. */
async function stopped(signal: "SIGINT" | "SIGKILL", options: Partial<FetchOptions> = {}) {
  const hub = await serve(files);
  const dir = await temporary();
  hub.setFaults({ stallAt: { bytes: STOP } });
  const timing = { stall: 60_000, tailStall: 60_000, ...options.internals?.timing };
  const child = spawnRun(testOptions(hub, dir, { concurrency: 1, internals: { ...internals, timing } }));
  await child.event(downloading(STOP));
  return {
    hub,
    dir,
    child,
    stop: async () => {
      child.child.kill(signal);
      const { code, output } = await child.ended;
      hub.clearFaults();
      hub.clearLog();
      return { code, output, ...(await paths(dir)) };
    },
  };
}

describe("going on inside a segment", () => {
  it("after SIGINT nothing that was received is fetched again, to the byte", async () => {
    const { hub, dir, stop } = await stopped("SIGINT");
    const { code, output, journal } = await stop();
    expect(code).toBe(130);
    expect(said(output).error).toMatchObject({ code: "E_INTERRUPTED" });
    const content = await fileBytes(files[0]!);
    const sum = crc32(content.subarray(SEGMENT, STOP)).toString(16).padStart(8, "0");
    expect((await prefixes(journal)).at(-1)).toEqual({ p: 1, n: STOP - SEGMENT, c: sum });
    const { result } = await run(hub, dir, { internals });
    expect(sentFor(hub, PATH)).toBe(8 * MIB - STOP);
    expect(result).toMatchObject({ downloaded_bytes: 8 * MIB - STOP, resumed_bytes: STOP });
    await expectComplete(dir, files);
  });

  it("with eight connections, stopped at any time, nothing that was counted is fetched again", async () => {
    const big = [syntheticFile(PATH, 40 * MIB, { seed: 22 })];
    const hub = await serve(big);
    for (const at of [9 * MIB, 21_234_567]) {
      const dir = await temporary();
      hub.setFaults({ bps: 24 * MIB });
      const stop = new AbortController();
      let counted = 0;
      const onEvent = (event: StageEvent) => {
        if (event.type !== "progress" || event.phase !== "downloading") return;
        counted = event.done; // the last one, of the moment of the stop, included
        if (event.done >= at) stop.abort();
      };
      await failure(hub, dir, { signal: stop.signal, onEvent, internals });
      hub.clearFaults();
      hub.clearLog();
      const { result, messages } = await run(hub, dir, { internals });
      expect(counted).toBeGreaterThanOrEqual(at);
      expect(result.resumed_bytes).toBe(counted);
      expect(sentFor(hub, PATH)).toBe(40 * MIB - counted);
      expect(messages.join("\n")).not.toContain("damaged");
      await expectComplete(dir, big);
    }
  });

  it("stopped while connections wait for syncs to catch up, it leaves nothing damaged behind", async () => {
    const big = [syntheticFile(PATH, 24 * MIB, { seed: 23 })];
    const hub = await serve(big);
    const dir = await temporary();
    const before = slowSyncs(600);
    const child = spawnRun(testOptions(hub, dir, { concurrency: 2, internals }), { before });
    // Two segments written, one of them not yet synced; of two more the first buffers, the second ones may not be filled.
    const waiting = (event: StageEvent) =>
      downloading(12 * MIB)(event) && event.type === "progress" && event.detail?.["waiting_for_disk"] === 2;
    await child.event(waiting);
    child.child.kill("SIGINT");
    expect((await child.ended).code).toBe(130);
    const { messages } = await run(hub, dir, { internals });
    expect(messages.join("\n")).not.toContain("damaged");
    await expectComplete(dir, big);
  });

  it("a network that gave up resumes to the byte, too", async () => {
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ stallAt: { bytes: STOP } });
    const timing = { stall: 200, tailStall: 200, giveUp: 600 };
    const error = await failure(hub, dir, { concurrency: 1, internals: { ...internals, timing } });
    expect(error).toMatchObject({ code: "E_NETWORK", exit: 6 });
    hub.clearFaults();
    const { result } = await run(hub, dir, { internals });
    expect(result).toMatchObject({ downloaded_bytes: 8 * MIB - STOP, resumed_bytes: STOP });
    await expectComplete(dir, files);
  });

  it("a file put to the end because its host fails goes on where it was left, within the run", async () => {
    const hub = await serve(files);
    const dir = await temporary();
    // Every answer ends after 0.9 MB: with two attempts and much progress asked for, the file is parked again and again.
    hub.setFaults({ cutAfter: { bytes: 900_000 } });
    const timing = { attempts: 2, progressBytes: 100 * MIB };
    const { result } = await run(hub, dir, {
      concurrency: 1,
      internals: { segmentBytes: 8 * MIB, timing },
    });
    expect(hub.struck("cutAfter")).toBeGreaterThan(5);
    expect(result.downloaded_bytes).toBe(8 * MIB);
    await expectComplete(dir, files);
  });

  it("what came of slow segments is made durable now and then: SIGKILL costs less than a segment", async () => {
    const { hub, dir, child, stop } = await stopped("SIGKILL", {
      internals: { timing: { checkpoint: 100 } },
    });
    // Whole buffers of 2 MiB are written while the connection waits; what is in the last one is lost.
    const { journal } = await paths(dir);
    await expect
      .poll(async () => (await prefixes(journal)).at(-1), { timeout: 20_000 })
      .toMatchObject({ p: 1, n: 2 * MIB });
    expect(child.child.exitCode).toBe(null);
    await stop();
    const { result } = await run(hub, dir, { internals });
    expect(result.resumed_bytes).toBe(SEGMENT + 2 * MIB);
    expect(sentFor(hub, PATH)).toBe(2 * MIB);
    await expectComplete(dir, files);
  });

  it("a host that does no ranges after all passes over what is there", async () => {
    const { hub, dir, stop } = await stopped("SIGINT");
    await stop();
    hub.setFaults({ ignoreRange: true });
    const { result } = await run(hub, dir, { internals });
    expect(result.resumed_bytes).toBe(STOP);
    await expectComplete(dir, files);
  });

  it("resumed, interrupted and resumed again and again, every byte comes once", async () => {
    const hub = await serve(files);
    const dir = await temporary();
    let bytes = 0;
    for (const to of [1_000_003, 2_500_000, 2_500_001, SEGMENT - 1, SEGMENT + 1, 6_000_000]) {
      hub.clearFaults();
      hub.setFaults({ stallAt: { bytes: to } });
      const stop = new AbortController();
      const timing = { stall: 60_000, tailStall: 60_000 };
      const onEvent = (event: StageEvent) => {
        if (downloading(to)(event)) stop.abort();
      };
      const options = { concurrency: 1, signal: stop.signal, onEvent, internals: { ...internals, timing } };
      expect(await failure(hub, dir, options)).toMatchObject({ code: "E_INTERRUPTED" });
      bytes = to;
    }
    hub.clearFaults();
    const { result } = await run(hub, dir, { internals });
    expect(result).toMatchObject({ downloaded_bytes: 8 * MIB - bytes, resumed_bytes: bytes });
    await expectComplete(dir, files);
  });
});

describe("damage to what is there of a segment", () => {
  it("a flipped byte is found before anything is built on it, and these bytes alone are fetched again", async () => {
    const { hub, dir, stop } = await stopped("SIGINT");
    const { part } = await stop();
    const handle = await open(part, "r+");
    const byte = Buffer.alloc(1);
    await handle.read(byte, 0, 1, STOP - 1);
    byte[0]! ^= 0x40;
    await handle.write(byte, 0, 1, STOP - 1);
    await handle.close();
    const { result, messages } = await run(hub, dir, { internals });
    expect(messages.join("\n")).toContain(
      `${STOP - SEGMENT} bytes from ${SEGMENT} on were damaged on the disk`,
    );
    expect(result).toMatchObject({ downloaded_bytes: SEGMENT, resumed_bytes: SEGMENT });
    expect(sentFor(hub, PATH)).toBe(4 * MIB);
    await expectComplete(dir, files);
  });

  it("a torn record of it counts for nothing; the one before does", async () => {
    const { hub, dir, stop } = await stopped("SIGINT");
    const { journal } = await stop();
    const text = await readFile(journal);
    await writeFile(journal, text.subarray(0, text.length - 5));
    const before = (await prefixes(journal)).at(-1)?.n ?? 0;
    expect(before).toBeLessThan(STOP - SEGMENT);
    const { result } = await run(hub, dir, { internals });
    expect(result).toMatchObject({ resumed_bytes: SEGMENT + before, downloaded_bytes: SEGMENT - before });
    await expectComplete(dir, files);
  });

  it("a record that claims more than is there is found out", async () => {
    const { hub, dir, stop } = await stopped("SIGINT");
    const { journal } = await stop();
    const text = await readFile(journal, "utf8");
    await writeFile(journal, text + encodeRecord({ p: 1, n: 3_000_000, c: "00000000" }));
    const { result } = await run(hub, dir, { internals });
    expect(result).toMatchObject({ downloaded_bytes: SEGMENT, resumed_bytes: SEGMENT });
    await expectComplete(dir, files);
  });
});

describe("a sync that failed", () => {
  it("is not made good by a later one: the journal vouches for nothing from then on", async () => {
    const hub = await serve(files);
    const dir = await temporary();
    // As Linux does it: the error is told once, and the next sync of the same file succeeds without the lost pages.
    const before = `
      const { open } = await import("node:fs/promises");
      const probe = await open("/dev/null");
      const proto = Object.getPrototypeOf(probe);
      await probe.close();
      const original = proto.datasync;
      let syncs = 0;
      proto.datasync = async function () {
        if (++syncs === 1) throw Object.assign(new Error("EIO: i/o error, fdatasync"), { code: "EIO" });
        return original.call(this);
      };`;
    hub.setFaults({ bps: 8 * MIB });
    const { code, output } = await spawnRun(testOptions(hub, dir, { concurrency: 2, internals }), { before })
      .ended;
    expect(said(output).error!.message).toContain("EIO");
    expect(code).not.toBe(0);
    const { records } = await readJournal((await paths(dir)).journal);
    expect(records.filter((entry) => !("v" in (entry as object)) && !("o" in (entry as object)))).toEqual([]);
    hub.clearFaults();
    expect((await run(hub, dir, { internals })).result.resumed_bytes).toBe(0);
    await expectComplete(dir, files);
  });
});

describe("journals of other versions", () => {
  it("one without records of unfinished segments, and one with records of unknown kinds, are gone on from", async () => {
    const { hub, dir, stop } = await stopped("SIGINT");
    const { journal } = await stop();
    const { records } = await readJournal(journal);
    const old = records.filter((entry) => !("p" in (entry as object)));
    await writeFile(journal, [...old, { future: [1, 2] }, "text", null].map(encodeRecord).join(""));
    const { result } = await run(hub, dir, { internals });
    expect(result).toMatchObject({ resumed_bytes: SEGMENT, downloaded_bytes: 4 * MIB });
    await expectComplete(dir, files);
  });

  it("one of an unknown format version is not believed, and that is said", async () => {
    const { hub, dir, stop } = await stopped("SIGINT");
    const { journal } = await stop();
    const { records } = await readJournal(journal);
    const [head, ...rest] = records as [object, ...object[]];
    await writeFile(journal, [{ ...head, v: 2 }, ...rest].map(encodeRecord).join(""));
    const { result, messages } = await run(hub, dir, { internals });
    expect(messages.join("\n")).toContain("cannot be continued (its journal has version 2); starting over");
    expect(result).toMatchObject({ resumed_bytes: 0, downloaded_bytes: 8 * MIB });
    await expectComplete(dir, files);
  });
});
