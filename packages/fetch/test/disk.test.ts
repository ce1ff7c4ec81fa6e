import { execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdir, open, readdir, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { lockFile, type StageEvent } from "@k3/stage";
import { bytesFile, fileBytes, syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  atEnd,
  expectComplete,
  failure,
  KIB,
  MIB,
  run,
  said,
  sampleFiles,
  sentFor,
  serve,
  shardName,
  spawnRun,
  temporary,
  testOptions,
} from "./support.ts";

const SHARD = "model.safetensors";
const one = (bytes = 4 * MIB) => [syntheticFile(SHARD, bytes, { seed: 3 })];
const downloading = (bytes: number) => (event: StageEvent) =>
  event.type === "progress" && event.phase === "downloading" && event.done >= bytes;

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

describe("the order of writes, and threads (hub.md section 7)", () => {
  it("row 28: data is synced before the rename, the directory after it, metadata last; row 31: no symlinks", async () => {
    const files = one(600 * KIB);
    const hub = await serve(files);
    const dir = await temporary();
    // Every call of the process that touches names or syncs, in the order in which they ended.
    const before = `
      const fs = await import("node:fs/promises");
      const { syncBuiltinESMExports } = await import("node:module");
      const calls = [];
      const names = new Map();
      const note = (what, path) => calls.push(what + " " + String(path).replace(${JSON.stringify(dir)}, ""));
      for (const name of ["rename", "symlink", "link", "open"]) {
        const original = fs.default[name];
        fs.default[name] = async (...args) => {
          const value = await original(...args);
          if (name === "open") names.set(value, args[0]);
          else note(name, args.at(-1));
          return value;
        };
      }
      const probe = await fs.default.open("/dev/null");
      const proto = Object.getPrototypeOf(probe);
      await probe.close();
      for (const name of ["sync", "datasync", "write"]) {
        const original = proto[name];
        proto[name] = async function (...args) {
          // Slow, so that what does not wait for it is ahead.
          if (name !== "write") await new Promise((resolve) => setTimeout(resolve, 100));
          const value = await original.apply(this, args);
          note(name, names.get(this));
          return value;
        };
      }
      syncBuiltinESMExports();
      process.on("exit", () => process.stdout.write("\\n" + JSON.stringify({ calls }) + "\\n"));`;
    const { code, output } = await spawnRun(testOptions(hub, dir), { before }).ended;
    expect(code).toBe(0);
    const { calls } = JSON.parse(output.trim().split("\n").at(-1)!) as { calls: string[] };
    const renamed = calls.indexOf(`rename /${SHARD}`);
    // The new directories on the way to the part file, before its first record.
    const firstRecord = calls.findIndex((c) => /^datasync .*\.journal$/.test(c));
    const early = calls.slice(0, firstRecord);
    for (const made of ["", "/.cache", "/.cache/k3"]) expect(early).toContain(`sync ${made}`);
    const part = calls.findLastIndex((c, i) => i < renamed && /^(data)?sync .*\.part$/.test(c));
    const written = calls.findLastIndex((c) => /^write .*\.part$/.test(c));
    const directory = calls.findIndex((c, i) => i > renamed && c === "sync ");
    const parts = calls.findIndex((c, i) => i > renamed && c === "sync /.cache/k3/parts");
    const journal = calls.findIndex((c, i) => i > renamed && /^datasync \/\.cache\/k3\/verify\//.test(c));
    const metadata = calls.indexOf(`rename /.cache/huggingface/download/${SHARD}.metadata`);
    expect(written).toBeGreaterThanOrEqual(0);
    expect(part).toBeGreaterThan(written);
    expect([
      directory > renamed,
      parts > renamed,
      journal > Math.max(directory, parts),
      metadata > journal,
    ]).toEqual([true, true, true, true]);
    // Within a part file: data before the journal, for every record.
    for (const [i, call] of calls.entries()) {
      if (!/^datasync .*\.journal$/.test(call) || i < 8) continue;
      expect(calls.slice(0, i).some((c) => /^(data)?sync .*\.part$/.test(c))).toBe(true);
    }
    expect(calls.filter((c) => /^(symlink|link) /.test(c))).toEqual([]);
  });

  it("row 27: syncs that block for seconds leave threads for name lookups and the Hub", async () => {
    const files = sampleFiles(600 * KIB, 6);
    const hub = await serve(files);
    const dir = await temporary();
    const fifo = join(dir, "..", `fifo-${process.pid}`);
    execFileSync("mkfifo", [fifo]);
    atEnd(() => rm(fifo));
    // Every datasync of a part file first blocks a thread of the pool, as a slow disk does: opening a FIFO waits for its writer.
    const before = `
      const { open } = await import("node:fs/promises");
      const probe = await open("/dev/null");
      const proto = Object.getPrototypeOf(probe);
      await probe.close();
      const original = proto.datasync;
      let blocked = 0, most = 0;
      proto.datasync = async function () {
        blocked++;
        most = Math.max(most, blocked);
        const fifo = await open(${JSON.stringify(fifo)}, "r");
        await fifo.close();
        blocked--;
        return original.call(this);
      };
      process.on("exit", () => process.stdout.write("\\n" + JSON.stringify({ most }) + "\\n"));`;
    const options = testOptions({ endpoint: hub.endpoint.replace("127.0.0.1", "localhost") }, dir, {
      concurrency: 8,
    });
    const child = spawnRun(options, { before, env: { UV_THREADPOOL_SIZE: "4" } });
    // The writer's end opens now and then: each time lets a blocked reader go on.
    const release = setInterval(() => {
      open(fifo, "r+")
        .then((h) => setTimeout(() => h.close(), 20))
        .catch(() => undefined);
    }, 120);
    const { code, output } = await child.ended;
    clearInterval(release);
    expect(code).toBe(0);
    await expectComplete(dir, files);
    const { most } = JSON.parse(output.trim().split("\n").at(-1)!) as { most: number };
    // Journals and part files together: the pool of four is never full of syncs.
    expect(most).toBeLessThanOrEqual(3);
  });

  it("row 31: eight files at once in a fresh directory, none of them a link", async () => {
    const files = sampleFiles(100 * KIB, 8);
    const hub = await serve(files);
    const dir = await temporary();
    await run(hub, dir, { concurrency: 8 });
    await expectComplete(dir, files);
    const entries = await readdir(dir, { recursive: true, withFileTypes: true });
    expect(entries.filter((e) => e.isSymbolicLink())).toEqual([]);
  });
});

describe("what hf left, and what it finds", () => {
  const incomplete = async (dir: string, name: string, suffix: string, bytes: Buffer) => {
    const b64 = createHash("sha1").update(`${name}.metadata`).digest("base64url");
    const padded = b64 + "=".repeat((4 - (b64.length % 4)) % 4);
    const path = join(dir, ".cache/huggingface/download", `${padded}.${suffix}.incomplete`);
    await mkdir(join(path, ".."), { recursive: true });
    await writeFile(path, bytes);
    return path;
  };

  it("the name of a partial is the one that hf gives it", async () => {
    const dir = await temporary();
    const path = await incomplete(dir, "model-00001-of-000003.safetensors", "x", Buffer.alloc(0));
    expect(path).toContain("uGj-vS0RKy9AFcsof0vc8LBQRmE=.x.incomplete"); // observed from hf 1.33
  });

  it("adopts a partial of either form but its last segment, when asked to", async () => {
    for (const form of ["", ".0123abcd"]) {
      const files = one();
      const hub = await serve(files);
      const dir = await temporary();
      const { sha256 } = await files[0]!.hashes();
      const path = await incomplete(
        dir,
        SHARD,
        `${sha256}${form}`,
        await fileBytes(files[0]!, 0, 2 * MIB + 1000),
      );
      const { result } = await run(hub, dir, { adoptPartials: true });
      expect(result.resumed_bytes).toBe(2 * MIB - 256 * KIB);
      expect(result.downloaded_bytes).toBe(4 * MIB - result.resumed_bytes);
      await expectComplete(dir, files);
      await expect(stat(path)).rejects.toThrow("ENOENT");
    }
  });

  it("what was adopted is not lost to a kill right after its rename into place", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    const { sha256 } = await files[0]!.hashes();
    await incomplete(dir, SHARD, sha256!, await fileBytes(files[0]!, 0, 2 * MIB + 1000));
    const before = `
      const fs = await import("node:fs/promises");
      const { syncBuiltinESMExports } = await import("node:module");
      const { rename } = fs.default;
      fs.default.rename = async (from, to) => {
        await rename(from, to);
        if (to.endsWith(".part")) process.kill(process.pid, "SIGKILL");
      };
      syncBuiltinESMExports();`;
    const { code } = await spawnRun(testOptions(hub, dir, { adoptPartials: true }), { before }).ended;
    expect(code).toBeNull();
    const { result } = await run(hub, dir);
    expect(result.resumed_bytes).toBe(2 * MIB - 256 * KIB);
    await expectComplete(dir, files);
  });

  it("does not touch partials unless asked to", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    const { sha256 } = await files[0]!.hashes();
    const path = await incomplete(dir, SHARD, sha256!, await fileBytes(files[0]!, 0, 2 * MIB));
    const { result } = await run(hub, dir);
    expect(result.resumed_bytes).toBe(0);
    expect((await stat(path)).size).toBe(2 * MIB);
  });

  it("a partial whose bytes are wrong costs only the adopted segments", async () => {
    const files = one();
    const hub = await serve(files);
    const dir = await temporary();
    const { sha256 } = await files[0]!.hashes();
    const bytes = await fileBytes(files[0]!, 0, 2 * MIB + 1000);
    bytes[5]! ^= 1;
    await incomplete(dir, SHARD, sha256!, bytes);
    const { result, messages } = await run(hub, dir, { adoptPartials: true });
    expect(messages.join("\n")).toMatch(/another program left/);
    expect(result.downloaded_bytes).toBe(4 * MIB);
    await expectComplete(dir, files);
  });

  it("leaves the layout of hub.md section 3: metadata not older than the file, the listing, the marks", async () => {
    const files = sampleFiles(300 * KIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir);
    const cache = join(dir, ".cache/huggingface");
    expect(await readFile(join(cache, ".gitignore"), "utf8")).toBe("*");
    expect(await readFile(join(cache, "CACHEDIR.TAG"), "utf8")).toMatch(
      /^Signature: 8a477f597d28d172789f06886806bc55\n/,
    );
    for (const file of files) {
      const text = await readFile(join(cache, "download", `${file.path}.metadata`), "utf8");
      const { sha256, oid } = await file.hashes();
      const [commit, etag, time, rest] = text.split("\n");
      expect([commit, etag, rest]).toEqual([result.revision, sha256 ?? oid, ""]);
      // hf trusts a file only while mtime - 1 s <= timestamp.
      expect((await stat(join(dir, file.path))).mtimeMs / 1000 - 1).toBeLessThanOrEqual(Number(time));
    }
    const tree = JSON.parse(await readFile(join(cache, "trees", `${result.revision}.json`), "utf8"));
    expect(tree.format_version).toBe(1);
    for (const file of files) {
      const { sha256, oid } = await file.hashes();
      expect(tree.files[file.path]).toMatchObject({
        size: file.size,
        blob_id: oid,
        ...(sha256 ? { lfs_sha256: sha256, lfs_size: file.size } : {}),
      });
    }
    // A later run has only the frozen manifest; the pointers' hashes follow from their form.
    await rm(join(cache, "trees"), { recursive: true });
    await run(hub, dir);
    const again = JSON.parse(await readFile(join(cache, "trees", `${result.revision}.json`), "utf8"));
    for (const file of files) expect(again.files[file.path].blob_id).toBe((await file.hashes()).oid);
  });

  it("a name that leaves no room for a temporary one, or for hf's record, is a name all the same", async () => {
    // 255 bytes are all that a name may have; ".metadata" has 9.
    const names = [237, 246, 247, 255].map((length) => `${"n".repeat(length - 5)}.json`);
    const files = names.map((name) => bytesFile(name, name));
    const hub = await serve(files);
    const dir = await temporary();
    await run(hub, dir);
    await expectComplete(dir, files);
    const records = await readdir(join(dir, ".cache/huggingface/download"));
    expect(records.sort()).toEqual(names.slice(0, 2).map((name) => `${name}.metadata`));
    const { result } = await run(hub, dir);
    expect(result.downloaded_bytes).toBe(0);
  });

  it("a directory complete by hf's account is hashed once, without a request for any file", async () => {
    const files = sampleFiles(300 * KIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    await run(hub, dir);
    await rm(join(dir, ".cache/k3"), { recursive: true });
    hub.clearLog();
    const { result } = await run(hub, dir);
    expect(hub.requests.filter((r) => r.path !== null)).toEqual([]);
    expect(result).toMatchObject({ downloaded_bytes: 0, resumed_bytes: result.bytes, verified: true });
  });

  it("T-24: a damaged shard is fetched again and no other is touched", async () => {
    const files = sampleFiles(300 * KIB, 3);
    const hub = await serve(files);
    const dir = await temporary();
    await run(hub, dir);
    const before = await Promise.all(
      [0, 2].map(async (i) => (await stat(join(dir, shardName(i, 3)))).ctimeMs),
    );
    await rm(join(dir, shardName(1, 3)));
    hub.clearLog();
    await run(hub, dir);
    const after = await Promise.all(
      [0, 2].map(async (i) => (await stat(join(dir, shardName(i, 3)))).ctimeMs),
    );
    expect(after).toEqual(before);
    expect(sentFor(hub, shardName(1, 3))).toBe(300 * KIB + 1);
  });
});
