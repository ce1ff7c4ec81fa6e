import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { readReceipt } from "@k3/stage";
import { describe, expect, test } from "vitest";
import type { VerifyResult } from "../src/types.ts";
import { verify } from "../src/verify.ts";
import { badDisk, mountExt4, mountRamfs, noDirectReads, placeInImage, sha256sum } from "./disks.ts";
import { freeze, outcome, PATHS, put, temporaryDirectory, writeModel } from "./model.ts";

const MIB = 1 << 20;
const refused = noDirectReads();

/** A model with files of random bytes beside it, by name and size, frozen with what sha256sum says of them. */
async function withFiles(sizes: Record<string, number>, dir?: string): Promise<string> {
  const model = dir ?? (await temporaryDirectory());
  await writeModel(model);
  for (const [name, size] of Object.entries(sizes)) await put(model, name, randomBytes(size));
  const { files } = await freeze(model, [...PATHS, ...Object.keys(sizes)]);
  for (const file of files) {
    if (file.path in sizes) file.sha256 = sha256sum(join(model, file.path));
  }
  await freeze(model, [], { files });
  execFileSync("sync", ["-f", model]);
  return model;
}

/** The receipt's word on how the files were read. */
const readAs = async (dir: string) =>
  new Set((await readReceipt(dir))!.files.map(({ how, direct }) => `${how} ${direct}`));

interface Recheck {
  result: VerifyResult;
  buffered: number;
  verified: number;
  accounted: number;
}

function recheck(dir: string, env: NodeJS.ProcessEnv = process.env): Recheck {
  const child = join(import.meta.dirname, "children/recheck.mjs");
  return JSON.parse(execFileSync(process.execPath, [child, dir], { env, encoding: "utf8" }));
}

describe("read past the page cache", () => {
  // Ends within a page, at its edge, beside the edges of blocks and of a CRC-32's 64 MiB.
  const sizes = [1, 4095, 4096, 4097, MIB, MIB + 1, 3 * MIB - 1, 6 * MIB, 64 * MIB + 1];

  test("files of every length have the hashes of sha256sum", async ({ skip }) => {
    if (refused) return skip(refused);
    const dir = await withFiles(Object.fromEntries(sizes.map((size) => [`of-${size}.bin`, size])));
    for (const jobs of [1, 3]) {
      expect(await verify({ dir, jobs, recheck: true })).toMatchObject({ ok: true, direct: true });
    }
    expect(await readAs(dir)).toEqual(new Set(["read true"]));
    await put(dir, `of-${MIB + 1}.bin`, randomBytes(MIB + 1));
    const { faults, result } = await outcome({ dir, recheck: true });
    expect(faults.map(({ path, kind }) => [path, kind])).toEqual([[`of-${MIB + 1}.bin`, "hash"]]);
    expect(result!.direct).toBe(true);
  });

  test("the bytes come from the device, although the page cache has them", async ({ skip }) => {
    if (refused) return skip(refused);
    const dir = await withFiles({ "big.bin": 40 * MIB + 5, "small.bin": 70_000 });
    recheck(dir);
    const { result, buffered, verified, accounted } = recheck(dir);
    if (buffered > MIB)
      return skip(`the page cache did not keep the files: ${buffered} bytes were read again`);
    if (accounted === 0) return skip("no block device accounts for reads of the temporary directory");
    expect(result).toMatchObject({ ok: true, direct: true });
    expect(verified).toBeGreaterThanOrEqual(40 * MIB + 5 + 70_000);
  });

  test("damage of the disk that the page cache hides is found, to the chunk", async ({ skip }) => {
    const disk = mountExt4(160 * MIB);
    if (typeof disk === "string") return skip(disk);
    const { dir, image } = disk;
    const big = join(dir, "big.bin");
    await withFiles({ "big.bin": 70 * MIB + 123 }, dir);
    const sound = sha256sum(big);
    expect(await verify({ dir })).toMatchObject({ ok: true, direct: true });
    const handle = await open(image, "r+");
    await handle.write("damage", placeInImage(image, "/big.bin", 69 * MIB + 100));
    await handle.close();

    expect(sha256sum(big)).toBe(sound);
    expect(await verify({ dir })).toMatchObject({ ok: true, bytes_read: 0, direct: false });
    expect(await readAs(dir)).toEqual(new Set(["journal true"]));
    const found = expect.stringMatching(/damaged is chunk 1 of 2/);
    const fault = expect.objectContaining({ path: "big.bin", kind: "damaged", found });
    expect(await outcome({ dir, sinceReceipt: true })).toMatchObject({ faults: [fault] });
    expect(await outcome({ dir, recheck: true })).toMatchObject({ result: { direct: true }, exit: 3 });
    // What stands in the receipt is what the file was; whoever mends it has not read it back.
    const entry = (await readReceipt(dir))!.files.find(({ path }) => path === "big.bin");
    expect(entry).toMatchObject({ how: "journal", direct: false });
  });
});

describe("a filesystem without direct reads", () => {
  test("is read through the page cache, which result, receipt and command line say", async ({ skip }) => {
    const memory = mountRamfs();
    if (typeof memory === "string") return skip(memory);
    const { dir } = memory;
    await withFiles({ "big.bin": 5 * MIB + 5 }, dir);
    expect(await verify({ dir })).toMatchObject({ ok: true, direct: false, checked: 11 });
    expect(await readAs(dir)).toEqual(new Set(["read false"]));
    const command = [join(import.meta.dirname, "../../cli/bin/k3.js"), "verify", dir];
    const k3 = (...flags: string[]) =>
      execFileSync(process.execPath, [...command, ...flags], { encoding: "utf8", stdio: "pipe" });
    expect(k3("--recheck")).toMatch(/^ok: 11 files.*\nread through the page cache/);
    expect(k3()).not.toContain("page cache");
  });
});

/** Files below it are read from the bad disk, as those of a checkpoint are. */
const BAD = "x.safetensors.d";

describe("a bad disk", () => {
  test.each(["no-direct", "short"])("%s: the hashes are right, and how it was read is told", async (how) => {
    const dir = await withFiles({ [`${BAD}/big.bin`]: 5 * MIB + 4097, [`${BAD}/small.bin`]: 8195 });
    const { result } = recheck(dir, await badDisk({ K3_BAD_DISK: how }));
    expect(result).toMatchObject({ ok: true, direct: how === "short" && refused === undefined });
    const word = how === "short" && refused === undefined ? "read true" : "read false";
    expect((await readAs(dir)).has(word)).toBe(true);
  });

  test("errors are told with file and place, and keep no other file from being read", async () => {
    // More of them than the blocks of memory that are read into.
    const broken = Array.from({ length: 9 }, (_, n) => `${BAD}/broken-${n}.bin`);
    const sizes = [...broken, "y-sound.bin"].map((name) => [name, 3 * MIB + 1]);
    const dir = await withFiles(Object.fromEntries(sizes));
    const begin = 50 * 4096;
    const env = await badDisk({ K3_BAD_DISK: "eio", K3_BAD_RANGE: `${begin + 1}-${begin + 2}` });
    const { result } = recheck(dir, env);
    expect(result.faults.map(({ path, kind, found }) => [path, kind, found])).toEqual(
      broken.map((path) => [path, "unreadable", `EIO: i/o error, read at byte ${begin}`]),
    );
    expect(result).toMatchObject({ ok: false, checked: 20 });
  });
});
