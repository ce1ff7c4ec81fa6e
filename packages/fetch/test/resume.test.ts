import { createHash } from "node:crypto";
import { mkdir, open, readFile, rename, rm, stat, truncate, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { hashJournalPath, readJournal } from "@k3/stage";
import { fileBytes, syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  downloading,
  expectComplete,
  failure,
  KIB,
  leftovers,
  MIB,
  run,
  sampleFiles,
  sentFor,
  serve,
  shardName,
  slowSyncs,
  spawnRun,
  temporary,
  testOptions,
} from "./support.ts";

const SEGMENT = 256 * KIB;

describe("resuming (hub.md section 7)", () => {
  it("row 1: SIGKILL at 40 % costs at most connections x segment, and the rerun does not start over", async () => {
    const files = [syntheticFile("model.safetensors", 12 * MIB, { seed: 5 })];
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ bps: 6 * MIB });
    const first = spawnRun(testOptions(hub, dir, { concurrency: 4 }));
    await first.event(downloading(0.4 * 12 * MIB));
    first.child.kill("SIGKILL");
    await first.ended;
    hub.clearFaults();
    hub.clearLog();
    const { result } = await run(hub, dir, { concurrency: 4 });
    const resent = sentFor(hub, "model.safetensors");
    expect(resent).toBe(result.downloaded_bytes);
    expect(result.resumed_bytes + resent).toBe(12 * MIB);
    expect(result.resumed_bytes).toBeGreaterThanOrEqual(0.4 * 12 * MIB - 4 * SEGMENT - 0.3 * MIB);
    await expectComplete(dir, files);
  });

  it("row 1: the bound holds when syncs take long, too: connections wait rather than run ahead of the journal", async () => {
    const files = [syntheticFile("model.safetensors", 12 * MIB, { seed: 5 })];
    const hub = await serve(files);
    const dir = await temporary();
    const before = slowSyncs(300);
    const first = spawnRun(testOptions(hub, dir, { concurrency: 2 }), { before });
    let done = 0;
    await first.event((event) => {
      if (event.type === "progress" && event.phase === "downloading") done = Math.max(done, event.done);
      return done >= 2 * MIB;
    });
    first.child.kill("SIGKILL");
    await first.ended;
    const { result } = await run(hub, dir, { concurrency: 2 });
    expect(result.resumed_bytes).toBeGreaterThanOrEqual(done - 2 * SEGMENT);
    await expectComplete(dir, files);
  });

  it("row 2: a part file that is complete but not renamed is published without a request for it", async () => {
    const files = sampleFiles(1 * MIB, 1);
    const hub = await serve(files);
    const dir = await temporary();
    const shard = shardName(0, 1);
    // Hold the last file just before its publication: the target is a directory, so the rename fails.
    await mkdir(join(dir, "elsewhere"), { recursive: true });
    await run(hub, dir);
    const target = join(dir, shard);
    const hash = createHash("sha256")
      .update(await readFile(target))
      .digest("hex");
    const name = `${createHash("sha1").update(shard).digest("hex").slice(0, 8)}-${hash.slice(0, 16)}`;
    await rename(target, join(dir, ".cache/k3/parts", `${name}.part`));
    const { zlib, encodeRecord } = { zlib: await import("node:zlib"), ...(await import("@k3/stage")) };
    const bytes = await readFile(join(dir, ".cache/k3/parts", `${name}.part`));
    const lines = [encodeRecord({ v: 1, path: shard, size: bytes.length, hash, seg: SEGMENT })];
    for (let s = 0; s * SEGMENT < bytes.length; s++) {
      const data = bytes.subarray(s * SEGMENT, (s + 1) * SEGMENT);
      lines.push(encodeRecord({ s, n: data.length, c: zlib.crc32(data).toString(16).padStart(8, "0") }));
    }
    await writeFile(join(dir, ".cache/k3/parts", `${name}.journal`), lines.join(""));
    hub.clearLog();
    const { result } = await run(hub, dir);
    expect(hub.requests.filter((r) => r.path !== null)).toEqual([]);
    expect(result.downloaded_bytes).toBe(0);
    await expectComplete(dir, files);
  });

  it("row 7: a truncated file is found by its size although hf's metadata vouches for it", async () => {
    const files = sampleFiles(1 * MIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    await run(hub, dir);
    const victim = join(dir, shardName(1, 2));
    await truncate(victim, 1000);
    await utimes(victim, new Date(2020, 1, 1), new Date(2020, 1, 1));
    hub.clearLog();
    const { events } = await run(hub, dir);
    await expectComplete(dir, files);
    expect(events.filter((e) => e.type === "progress" && e.phase.startsWith("hashing"))).toEqual([]);
    expect(sentFor(hub, shardName(0, 2))).toBe(0);
    expect(sentFor(hub, shardName(1, 2))).toBe(1 * MIB + 1);
  });

  it("a file of the right size but other content is found by its hash, one without a record is hashed and kept", async () => {
    const files = sampleFiles(1 * MIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    await run(hub, dir);
    await rm(join(dir, ".cache"), { recursive: true });
    const handle = await open(join(dir, shardName(0, 2)), "r+");
    await handle.write("flipped", 12345);
    await handle.close();
    hub.clearLog();
    const { messages } = await run(hub, dir);
    expect(messages.join("\n")).toMatch(/other content/);
    expect(sentFor(hub, shardName(1, 2))).toBe(0);
    await expectComplete(dir, files);
    // Now that they are recorded, nothing is read or asked for again.
    hub.clearLog();
    const again = await run(hub, dir);
    expect(again.messages.join("\n")).toMatch(/already here/);
    expect(again.events.filter((e) => e.type === "progress" && /hashing/.test(e.phase))).toEqual([]);
    expect(hub.requests.map((r) => r.path)).toEqual([null]);
  });

  it("with a full commit a complete directory needs no network at all", async () => {
    const files = sampleFiles(300 * KIB, 1);
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir);
    hub.clearLog();
    const again = await run(hub, dir, { revision: result.revision });
    expect(hub.requests).toEqual([]);
    expect(again.result).toMatchObject({ downloaded_bytes: 0, resumed_bytes: result.bytes, verified: true });
  });

  it("leaves the hash journal that verify trusts: identity after the rename, one CRC-32 per 64 MiB", async () => {
    const { crc32 } = await import("node:zlib");
    const files = sampleFiles(1 * MIB, 1);
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir);
    const { records } = await readJournal(hashJournalPath(dir, result.revision));
    expect(records).toHaveLength(files.length);
    for (const file of files) {
      const content = await fileBytes(file);
      const info = await stat(join(dir, file.path), { bigint: true });
      const { sha256, oid } = await file.hashes();
      const record = records.find((r) => (r as { path: string }).path === file.path) as { startedMs: number };
      expect(record).toMatchObject({
        how: "download",
        algorithm: sha256 ? "sha256" : "git-sha1",
        hash: sha256 ?? oid,
        crc32: content.length > 0 ? [crc32(content)] : [],
        identity: {
          size: content.length,
          mtimeNs: String(info.mtimeNs),
          ctimeNs: String(info.ctimeNs),
          ino: String(info.ino),
          dev: String(info.dev),
        },
      });
      expect(Number(info.mtimeMs)).toBeLessThanOrEqual(record.startedMs);
    }
  });
});

describe("what is left in parts/", () => {
  it("of files not asked for stays, all else goes once a run succeeds", async () => {
    const files = sampleFiles(1 * MIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ bps: 1 * MIB });
    const first = spawnRun(testOptions(hub, dir, { concurrency: 2, include: ["model-00001*"] }));
    await first.event(downloading(600 * KIB));
    first.child.kill("SIGKILL");
    await first.ended;
    hub.clearFaults();
    const begun = await leftovers(dir);
    expect(begun).toHaveLength(2);
    // As after kills between a rename and the removal of the journal, within the probe, and of an older revision.
    const parts = join(dir, ".cache/k3/parts");
    const published = createHash("sha1").update(shardName(1, 2)).digest("hex").slice(0, 8);
    const { sha256 } = await files.at(-1)!.hashes();
    await writeFile(join(parts, `${published}-${sha256!.slice(0, 16)}.journal`), "");
    await writeFile(join(parts, "probe-1"), "");
    await writeFile(join(parts, `${"0".repeat(8)}-${"0".repeat(16)}.part`), "");
    await run(hub, dir, { include: ["model-00002*"] });
    expect((await leftovers(dir)).sort()).toEqual(begun.sort());
    const { result } = await run(hub, dir, { include: ["model-*"] });
    expect(result.resumed_bytes).toBeGreaterThan(1 * MIB);
    await expectComplete(dir, files.slice(-2));
  });
});

it("what an earlier run left of a file does not count as speed", async () => {
  const hub = await serve([syntheticFile("model.safetensors", 24 * MIB, { seed: 5 })]);
  const dir = await temporary();
  const until = async (bytes: number) => {
    const stop = new AbortController();
    const rates: number[] = [];
    const error = await failure(hub, dir, {
      signal: stop.signal,
      onEvent: (event) => {
        if (event.type !== "progress" || event.phase !== "downloading") return;
        rates.push(event.rate ?? 0);
        if (event.done > bytes) stop.abort();
      },
    });
    expect(error.code).toBe("E_INTERRUPTED");
    return rates;
  };
  hub.setFaults({ bps: 40 * MIB });
  await until(14 * MIB);
  hub.setFaults({ bps: 1 * MIB });
  const rates = await until(17 * MIB);
  expect(rates.some((rate) => rate > 0)).toBe(true);
  expect(Math.max(...rates)).toBeLessThan(8 * MIB);
});

it("says that it checks what came, and how far, when that is all there is to wait for", async () => {
  const hub = await serve([syntheticFile("model.safetensors", 400 * MIB, { seed: 6 })]);
  const dir = await temporary();
  const stop = new AbortController();
  const options = { internals: { segmentBytes: 4 * MIB } };
  await failure(hub, dir, {
    ...options,
    signal: stop.signal,
    onEvent: (event) => event.type === "progress" && event.done > 390 * MIB && stop.abort(),
  });
  const { events } = await run(hub, dir, options);
  // A few megabytes come at once; before the file can be published the other hundreds are read back.
  const phases = events.flatMap((event) => (event.type === "progress" ? [event.phase] : []));
  const shares = phases.flatMap((phase) => /^checking what was received, (\d+) %$/.exec(phase)?.[1] ?? []);
  expect(shares.length).toBeGreaterThan(0);
  expect(shares.map(Number)).toEqual(shares.map(Number).sort((a, b) => a - b));
});
