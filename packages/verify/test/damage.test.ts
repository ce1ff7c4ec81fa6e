import { spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import {
  chmod,
  mkdir,
  open,
  readFile,
  rename,
  stat,
  symlink,
  truncate,
  unlink,
  utimes,
  writeFile,
} from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import {
  encodeRecord,
  fileIdentity,
  type HashRecord,
  hashJournalPath,
  lockFile,
  readJournal,
  readReceipt,
} from "@k3/stage";
import { describe, expect, onTestFinished, test } from "vitest";
import { isTrusted } from "../src/hash-journal.ts";
import { verify } from "../src/verify.ts";
import { age, freeze, listed, model, outcome, overwrite, put, REVISION, shard } from "./model.ts";

const MIB = 2 ** 20;
const CHUNK = 64 * MIB;
const BIG = "extra.bin";

/** A file of 2 whole chunks and a rest, in a model's directory. */
async function withBigFile(size = 2 * CHUNK + 5 * MIB + 3): Promise<string> {
  const dir = await model();
  const block = randomBytes(MIB);
  const bytes = Buffer.alloc(size);
  for (let at = 0; at < size; at += MIB) block.copy(bytes, at);
  await put(dir, BIG, bytes);
  const { files } = await freeze(dir);
  await freeze(dir, [], { files: [...files, await listed(dir, BIG)] });
  return dir;
}

describe("damage after a clean pass", () => {
  test("is located to its chunks, kept in the receipt for fetch to mend, and gone when mended", async () => {
    const dir = await withBigFile();
    expect(await verify({ dir })).toMatchObject({ ok: true });
    const clean = (await readReceipt(dir))!;
    const bytes = await readFile(join(dir, BIG));
    expect(clean.files.find(({ path }) => path === BIG)!.crc32).toEqual(
      [0, 1, 2].map((chunk) => crc32(bytes.subarray(chunk * CHUNK, (chunk + 1) * CHUNK))),
    );

    const third = await readFile(join(dir, shard(3)));
    await overwrite(join(dir, BIG), CHUNK + 1234, "!");
    await overwrite(join(dir, shard(3)), -1, "!");
    const { exit, faults } = await outcome({ dir, sinceReceipt: true });
    expect(exit).toBe(3);
    expect(faults.map(({ path, kind }) => [path, kind])).toEqual([
      [BIG, "damaged"],
      [shard(3), "hash"],
    ]);
    expect(faults[0]!.found).toContain(`damaged is chunk 1 of 3 (bytes ${CHUNK} to ${2 * CHUNK - 1})`);
    expect(faults[0]!.hint).toContain("--repair");
    const receipt = (await readReceipt(dir))!;
    expect(receipt.damaged).toEqual([
      { path: BIG, chunks: [1] },
      { path: shard(3), chunks: [0] },
    ]);
    expect(receipt.files).toEqual(
      clean.files.map((file) =>
        expect.objectContaining({ path: file.path, hash: file.hash, crc32: file.crc32 }),
      ),
    );

    // What --repair does: the right bytes again, in place.
    await overwrite(join(dir, BIG), CHUNK + 1234, bytes.subarray(CHUNK + 1234, CHUNK + 1235));
    await overwrite(join(dir, shard(3)), -1, third.subarray(-1));
    expect(await verify({ dir, sinceReceipt: true })).toMatchObject({ ok: true });
    expect((await readReceipt(dir))!.damaged).toEqual([]);
  });

  test("shows although size, times and identity of the file are those of the receipt (bit rot)", async () => {
    const dir = await withBigFile(CHUNK + 17);
    await verify({ dir });
    await overwrite(join(dir, BIG), 3, "!");
    // As if the disk had changed it by itself: the journal has the identity that the file has now.
    const path = hashJournalPath(dir, REVISION);
    const identity = fileIdentity(await stat(join(dir, BIG), { bigint: true }));
    const records = (await readJournal(path)).records as HashRecord[];
    await writeFile(path, records.map((r) => encodeRecord(r.path === BIG ? { ...r, identity } : r)).join(""));
    expect(await verify({ dir })).toMatchObject({ ok: true, from_journal: 11 });
    const { faults } = await outcome({ dir, sinceReceipt: true });
    expect(faults).toEqual([
      expect.objectContaining({ path: BIG, kind: "damaged", found: expect.stringContaining("chunk 0 of 2") }),
    ]);
  });

  test("without a receipt: the CRC-32s of the download locate it, and the receipt says what to mend", async () => {
    const dir = await withBigFile(CHUNK + 17);
    const bytes = await readFile(join(dir, BIG));
    const record: HashRecord = {
      path: BIG,
      identity: fileIdentity(await stat(join(dir, BIG), { bigint: true })),
      algorithm: "sha256",
      hash: createHash("sha256").update(bytes).digest("hex"),
      how: "download",
      startedMs: Date.now(),
      crc32: [crc32(bytes.subarray(0, CHUNK)), crc32(bytes.subarray(CHUNK))],
    };
    await mkdir(join(dir, ".cache/k3/verify"), { recursive: true });
    await writeFile(hashJournalPath(dir, REVISION), encodeRecord(record));
    expect((await verify({ dir, level: "hashes" })).from_journal).toBe(1);
    expect((await readReceipt(dir))!.files.find(({ path }) => path === BIG)).toMatchObject({
      how: "download",
      crc32: record.crc32,
    });

    await unlink(join(dir, ".cache/k3/verify.json"));
    await writeFile(hashJournalPath(dir, REVISION), encodeRecord(record));
    await overwrite(join(dir, BIG), CHUNK + 1, "!");
    const { faults } = await outcome({ dir });
    expect(faults).toEqual([
      expect.objectContaining({ kind: "damaged", found: expect.stringContaining("chunk 1 of 2") }),
    ]);
    expect((await readReceipt(dir))!.damaged).toEqual([{ path: BIG, chunks: [1] }]);
  });

  test("of a file that was never right: all of it", async () => {
    const dir = await withBigFile(CHUNK + 17);
    await overwrite(join(dir, BIG), 3, "!");
    await outcome({ dir });
    expect((await readReceipt(dir))!.damaged).toEqual([{ path: BIG, chunks: [0, 1] }]);
    expect((await readReceipt(dir))!.files.map(({ path }) => path)).not.toContain(BIG);
    // Known from the journal the second time, without reading it.
    const { result, faults } = await outcome({ dir });
    expect((await readReceipt(dir))!.files.map(({ path }) => path)).not.toContain(BIG);
    expect(result).toMatchObject({ from_journal: 11, bytes_read: 0 });
    expect(faults).toEqual([
      expect.objectContaining({
        kind: "hash",
        found: expect.stringContaining("when it was last read, unchanged since"),
      }),
    ]);
  });

  test("that shows in the sizes leaves the receipt as it is", async () => {
    const dir = await model();
    await verify({ dir });
    const before = await readFile(join(dir, ".cache/k3/verify.json"), "utf8");
    await truncate(join(dir, shard(2)), 100);
    expect((await outcome({ dir })).exit).toBe(3);
    expect(await readFile(join(dir, ".cache/k3/verify.json"), "utf8")).toBe(before);
  });
});

describe("files that change while they are read", () => {
  const whileVerifying = async (dir: string, act: () => Promise<unknown>) => {
    let running = true;
    const acting = (async () => {
      while (running) {
        await act();
        await new Promise((resolve) => setTimeout(resolve, 2));
      }
    })();
    const found = await outcome({ dir });
    running = false;
    await acting;
    return found;
  };

  test("by being written to, although with the same bytes", async () => {
    const dir = await withBigFile();
    const handle = await open(join(dir, BIG), "r+");
    onTestFinished(() => handle.close());
    const first = await readFile(join(dir, BIG)).then((bytes) => bytes.subarray(0, 1));
    const { exit, faults } = await whileVerifying(dir, () => handle.write(first, 0, 1, 0));
    expect([exit, faults]).toEqual([
      3,
      [expect.objectContaining({ path: BIG, kind: "changed", hint: expect.any(String) })],
    ]);
  });

  test("by being replaced", async () => {
    const dir = await withBigFile();
    const bytes = await readFile(join(dir, BIG));
    await put(dir, ".cache/k3/other", bytes);
    let swapped = 0;
    const { faults } = await whileVerifying(dir, async () => {
      // Back and forth between two files of the same content.
      await rename(join(dir, BIG), join(dir, ".cache/k3/third"));
      await rename(join(dir, ".cache/k3/other"), join(dir, BIG));
      await rename(join(dir, ".cache/k3/third"), join(dir, ".cache/k3/other"));
      swapped++;
    });
    expect(swapped).toBeGreaterThan(0);
    expect(faults.filter(({ path }) => path === BIG).map(({ kind }) => kind)).toEqual([
      expect.stringMatching(/changed|missing|unreadable/),
    ]);
  });
});

describe("the journal of hashes", () => {
  const identity = {
    size: 10,
    mtimeNs: "1700000000123456789",
    ctimeNs: "1700000000123456789",
    ino: "7",
    dev: "1",
  };
  const record: HashRecord = {
    path: "x",
    identity,
    algorithm: "sha256",
    hash: "",
    how: "read",
    startedMs: 1700000001000,
    crc32: [1],
  };
  test.each([
    ["an unchanged file", record, identity, true],
    ["another size", record, { ...identity, size: 11 }, false],
    ["another mtime, by a nanosecond", record, { ...identity, mtimeNs: "1700000000123456788" }, false],
    [
      "another ctime: touched with its times set back",
      record,
      { ...identity, ctimeNs: "1700000000123456790" },
      false,
    ],
    ["another inode: replaced", record, { ...identity, ino: "8" }, false],
    ["another device: copied", record, { ...identity, dev: "2" }, false],
    [
      "written to in the tick in which hashing began",
      { ...record, startedMs: 1700000000125 },
      identity,
      false,
    ],
    ["written to after hashing began", { ...record, startedMs: 1700000000000 }, identity, false],
    [
      "whole seconds as times, less than two before",
      { ...record, identity: { ...identity, mtimeNs: "1700000000000000000" } },
      { ...identity, mtimeNs: "1700000000000000000" },
      false,
    ],
    ["without the CRC-32s that a receipt needs", { ...record, crc32: [] }, identity, false],
  ])("%s", (_, known, now, trusted) => {
    expect(isTrusted(known, now)).toBe(trusted);
  });

  test("a torn or foreign line costs that line", async () => {
    const dir = await model();
    await verify({ dir });
    const path = hashJournalPath(dir, REVISION);
    const text = await readFile(path, "utf8");
    const lines = text.trimEnd().split("\n");
    await writeFile(path, `${[encodeRecord({ other: 1 }).trimEnd(), ...lines].join("\n").slice(0, -5)}`);
    expect(await verify({ dir })).toMatchObject({ ok: true, from_journal: 9 });
    expect((await readJournal(path)).records).toHaveLength(11);
  });

  test("a run that was killed continues behind the files it had finished", { timeout: 120_000 }, async () => {
    const dir = await withBigFile(512 * MIB);
    // Smaller than a chunk, and before the big one: hashed when the big one begins.
    const child = spawn(process.execPath, [join(import.meta.dirname, "children/verify.mjs"), dir], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const closed = new Promise<NodeJS.Signals | null>((resolve) =>
      child.on("close", (_, signal) => resolve(signal)),
    );
    // The journal is what counts: as soon as some files are in it.
    const path = hashJournalPath(dir, REVISION);
    for (;;) {
      const { records } = await readJournal(path);
      if (records.length >= 3) break;
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    child.kill("SIGKILL");
    expect(await closed).toBe("SIGKILL");
    const known = (await readJournal(path)).records.length;
    const result = await verify({ dir });
    expect(result).toMatchObject({ ok: true, from_journal: known });
    expect(known).toBeGreaterThanOrEqual(3);
    expect(known).toBeLessThan(11);
  });

  test("an interrupted run throws E_INTERRUPTED and keeps what it had finished", async () => {
    const dir = await withBigFile(256 * MIB);
    const controller = new AbortController();
    const running = verify({
      dir,
      signal: controller.signal,
      onEvent: (event) => {
        if (event.type === "progress" && event.detail?.["file"] === BIG) controller.abort();
      },
    });
    await expect(running).rejects.toMatchObject({ code: "E_INTERRUPTED", exit: 130 });
    expect((await verify({ dir })).from_journal).toBeGreaterThan(0);
    await expect(verify({ dir, signal: AbortSignal.abort() })).rejects.toMatchObject({ exit: 130 });
  });

  test("another process at work on the directory: E_LOCKED", async () => {
    const dir = await model();
    const lock = await lockFile(join(dir, ".cache/k3/lock"), "a test");
    expect((await outcome({ dir })).exit).toBe(7);
    await lock.release();
    expect((await outcome({ dir })).exit).toBe(0);
  });

  const isRoot = process.getuid?.() === 0;
  test.skipIf(isRoot)(
    `a directory that cannot be written to is verified all the same${isRoot ? " (skipped: root may write everywhere)" : ""}`,
    async () => {
      const dir = await model();
      await chmod(join(dir, ".cache/k3"), 0o555);
      expect(await verify({ dir })).toMatchObject({ ok: true });
      await chmod(join(dir, ".cache/k3"), 0o755);
    },
  );
});

test("a link to a file is followed, and what it leads to is what counts", async () => {
  const dir = await model();
  await rename(join(dir, shard(2)), join(dir, ".cache/k3/blob"));
  await symlink(".cache/k3/blob", join(dir, shard(2)));
  expect(await verify({ dir })).toMatchObject({ ok: true });
  await utimes(join(dir, ".cache/k3/blob"), new Date(), new Date());
  await age(join(dir, ".cache/k3/blob"));
  expect(await verify({ dir })).toMatchObject({ ok: true, from_journal: 9 });
});
