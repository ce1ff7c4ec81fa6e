import { execFileSync, spawn } from "node:child_process";
import { mkdir, mkdtemp, open, readdir, readFile, readlink, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import {
  lockFile,
  makeDirectory,
  parseSnapshot,
  readReceipt,
  readRegularFile,
  readSnapshot,
  receiptPath,
  requireSpace,
  StageError,
  selectedFiles,
  snapshotPath,
  toStageError,
  writeFileAtomically,
} from "../src/index.ts";

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "k3-files-"));
});
afterAll(() => rm(dir, { recursive: true, force: true }));

describe("writeFileAtomically", () => {
  it("replaces the content and leaves nothing else behind", async () => {
    const path = join(dir, "atomic", "file");
    await expect(writeFileAtomically(path, "x")).rejects.toMatchObject({ code: "ENOENT" });
    const flat = join(dir, "flat");
    await writeFileAtomically(flat, "old");
    await writeFileAtomically(flat, "new");
    expect(await readFile(flat, "utf8")).toBe("new");
    expect((await readdir(dir)).filter((name) => name.endsWith(".tmp"))).toEqual([]);
  });

  it("keeps writers of one process apart", async () => {
    const path = join(dir, "contended");
    const texts = Array.from({ length: 8 }, (_, i) => String(i).repeat(100_000 + i));
    await Promise.all(texts.map((text) => writeFileAtomically(path, text)));
    expect(texts).toContain(await readFile(path, "utf8"));
  });

  it("writes a file whose name is as long as a name may be", async () => {
    for (const name of ["n".repeat(255), "ü".repeat(127)]) {
      await writeFileAtomically(join(dir, name), "long");
      expect(await readFile(join(dir, name), "utf8")).toBe("long");
    }
  });
});

describe("makeDirectory", () => {
  it("syncs the parent of every directory that it makes, and of no other", async () => {
    await mkdir(join(dir, "made"));
    const synced: string[] = [];
    const probe = await open("/dev/null");
    const handles: { sync(): Promise<void> } = Object.getPrototypeOf(probe);
    await probe.close();
    const sync = vi.spyOn(handles, "sync").mockImplementation(async function (this: typeof probe) {
      synced.push(await readlink(`/proc/self/fd/${this.fd}`));
    });
    try {
      await makeDirectory(join(dir, "made", "a", "b", "c"));
      expect(synced.sort()).toEqual(["made", "made/a", "made/a/b"].map((name) => join(dir, name)));
      synced.length = 0;
      await makeDirectory(join(dir, "made", "a", "b"));
      expect(synced).toEqual([]);
      await makeDirectory(relative(process.cwd(), join(dir, "made", "d")));
      expect(synced).toEqual([join(dir, "made")]);
    } finally {
      sync.mockRestore();
    }
  });
});

/** Processes beside this one that have a file open. */
async function othersThatHaveOpen(path: string): Promise<number[]> {
  const found: number[] = [];
  for (const pid of (await readdir("/proc")).filter((name) => /^\d+$/.test(name))) {
    const descriptors = await readdir(`/proc/${pid}/fd`).catch(() => [] as string[]);
    const targets = await Promise.all(
      descriptors.map((fd) => readlink(`/proc/${pid}/fd/${fd}`).catch(() => "")),
    );
    if (Number(pid) !== process.pid && targets.includes(path)) found.push(Number(pid));
  }
  return found;
}

describe("lockFile", () => {
  it("lets one in, names the holder to the next, and opens again after release", async () => {
    const path = join(dir, "lock-a");
    const lock = await lockFile(path, "packing");
    const refused = await lockFile(path, "other").catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(StageError);
    expect(refused).toMatchObject({ code: "E_LOCKED", exit: 7 });
    expect(String(refused)).toContain(`pid ${process.pid}, packing`);
    await lock.release();
    await (await lockFile(path, "again")).release();
  });

  it("is held by this process itself: no helper's death can lose it", async () => {
    const path = join(dir, "lock-c");
    const lock = await lockFile(path, "holding on");
    for (const pid of await othersThatHaveOpen(path)) process.kill(pid, "SIGKILL");
    await new Promise((wait) => setTimeout(wait, 200));
    await expect(lockFile(path, "me")).rejects.toMatchObject({ code: "E_LOCKED" });
    await lock.release();
    await (await lockFile(path, "again")).release();
  });

  it("dies with its process", async () => {
    const path = join(dir, "lock-b");
    const child = spawn(process.execPath, [join(import.meta.dirname, "children/hold-lock.mjs"), path], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    await new Promise((held) => child.stdout.once("data", held));
    await expect(lockFile(path, "me")).rejects.toMatchObject({ code: "E_LOCKED" });
    child.kill("SIGKILL");
    await new Promise((gone) => child.once("close", gone));
    await (await lockFile(path, "me")).release();
  });
});

describe("the snapshot manifest", () => {
  const snapshot = {
    format: "k3-snapshot",
    version: 1,
    endpoint: "https://huggingface.co",
    repo: "a/b",
    revision: "0123456789".repeat(4),
    files: [
      { path: "config.json", size: 2, gitSha1: "9e26dfeeb6e641a33dae4961196235bdb965b21b" },
      { path: "model.safetensors", size: 10, sha256: "a".repeat(64) },
    ],
    selected: ["config.json"],
  };

  it("is read back, and tells which files were asked for", () => {
    expect(selectedFiles(parseSnapshot(JSON.stringify(snapshot), "here")).map((file) => file.path)).toEqual([
      "config.json",
    ]);
  });

  it.each([
    ["a ref in place of a commit", { ...snapshot, revision: "main" }],
    ["an unknown field", { ...snapshot, extra: 1 }],
    ["a negative size", { ...snapshot, files: [{ path: "x", size: -1 }] }],
    ["a future version", { ...snapshot, version: 2 }],
    ["no JSON", "{"],
  ])("refuses %s with E_DATA and the place", (_, value) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    expect(() => parseSnapshot(text, "DIR/snapshot.json")).toThrowError(
      expect.objectContaining({ code: "E_DATA", message: expect.stringContaining("DIR/snapshot.json") }),
    );
  });

  it("is optional: a directory made by hand has none", async () => {
    expect(await readSnapshot(dir)).toBeUndefined();
    expect(await readReceipt(dir)).toBeUndefined();
    expect(snapshotPath("/m")).toBe("/m/.cache/k3/snapshot.json");
  });
});

it("a manifest or receipt of a directory that is damaged says what to do", async () => {
  await mkdir(join(dir, "torn/.cache/k3"), { recursive: true });
  const hint = expect.stringContaining("remove it");
  await writeFile(snapshotPath(join(dir, "torn")), "");
  await expect(readSnapshot(join(dir, "torn"))).rejects.toMatchObject({ code: "E_DATA", hint });
  await writeFile(receiptPath(join(dir, "torn")), "{}");
  await expect(readReceipt(join(dir, "torn"))).rejects.toMatchObject({ code: "E_DATA", hint });
});

describe("errors", () => {
  it("keep their meaning when they come from the system", async () => {
    expect(toStageError(Object.assign(new Error("full"), { code: "ENOSPC" }))).toMatchObject({
      code: "E_SPACE",
      exit: 5,
    });
    // Linux has nothing mapped at address 0, and says so as a disk does that cannot be read.
    const broken = await open("/proc/self/mem");
    const unreadable = await broken.read(Buffer.alloc(1), 0, 1, 0).catch(toStageError);
    expect(unreadable).toMatchObject({ code: "E_READ", exit: 4, message: expect.stringContaining("EIO") });
    await broken.close();
    // What Node gives for a failing disk: the system call tells reading (4) from writing (5, as a full disk).
    const failing = (syscall: string) => Object.assign(new Error("EIO: i/o error"), { code: "EIO", syscall });
    expect(["read", "write", "fsync", "fdatasync"].map((call) => toStageError(failing(call)).exit)).toEqual([
      4, 5, 5, 5,
    ]);
    const missing = await readFile(join(dir, "none")).catch(toStageError);
    expect(missing).toMatchObject({ code: "E_DATA", exit: 3 });
    expect(toStageError(new DOMException("stop", "AbortError"))).toMatchObject({ exit: 130 });
    expect(toStageError(new TypeError("oops"))).toMatchObject({ code: "E_DEFECT", exit: 1 });
  });

  it("name both numbers when the disk is too small", async () => {
    await writeFile(join(dir, "f"), "");
    await expect(requireSpace(dir, 2 ** 60, "the download")).rejects.toMatchObject({
      exit: 5,
      details: { needed: 2 ** 60, available: expect.any(Number) },
    });
  });
});

describe("readRegularFile", () => {
  it("refuses a pipe at once instead of waiting for a writer", async () => {
    const pipe = join(dir, "pipe");
    execFileSync("mkfifo", [pipe]);
    await expect(readRegularFile(pipe)).rejects.toMatchObject({
      code: "E_DATA",
      message: `${pipe}: not a regular file`,
    });
    await expect(readRegularFile(dir)).rejects.toMatchObject({ code: "E_DATA" });
  });
});
