import { execFileSync } from "node:child_process";
import { open, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  atEnd,
  expectComplete,
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
