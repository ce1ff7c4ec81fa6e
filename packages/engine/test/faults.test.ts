import { execFile, spawn } from "node:child_process";
import { cp, open, readdir, readFile, rename, stat, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { openCheckpoint } from "@k3/checkpoint";
import { withTempDir } from "@k3/testkit";
import { openTrunk } from "@k3/trunk";
import { beforeAll, describe, expect, test } from "vitest";
import { Model } from "../src/index.ts";
import { type PackedMiniature, packedMiniature } from "./miniature.ts";
import { continueWith } from "./reference.ts";

const execute = promisify(execFile);
const ids = Array.from({ length: 20 }, (_, i) => (i * 31 + 5) % 180);
let miniature: PackedMiniature;
let expected: number[];
let badDisk: string;

beforeAll(async () => {
  miniature = await packedMiniature();
  expected = (await continueWith({ modelDir: miniature.dir }, ids, 4)).generated;
  badDisk = join(process.env["K3_ENGINE_TEST_DIR"]!, "bad-disk.so");
  const source = join(import.meta.dirname, "faults/bad-disk.cc");
  await execute(process.env["CXX"] ?? "c++", [
    "-std=c++20",
    "-O1",
    "-shared",
    "-fPIC",
    source,
    "-o",
    badDisk,
    "-ldl",
  ]);
});

/** Behind what is there already: a sanitizer's runtime must come first. */
const preload = (): string => [process.env["LD_PRELOAD"], badDisk].filter(Boolean).join(" ");

interface ChildResult {
  generated?: number[];
  stats?: { retries: number; bufferedFiles: number };
  code?: string;
  exit?: number;
  message?: string;
}

async function child(
  disk: Record<string, string>,
  options: Record<string, unknown> = {},
): Promise<ChildResult> {
  const script = join(import.meta.dirname, "faults/child.mjs");
  const request = JSON.stringify({ modelDir: miniature.dir, ids, generate: 4, ...options });
  const env = { ...process.env, LD_PRELOAD: preload(), ...disk };
  const { stdout } = await execute(process.execPath, [script, request], { env });
  return JSON.parse(stdout.trim().split("\n").at(-1)!) as ChildResult;
}

describe("a bad disk", () => {
  test("that fails now and then: retried, the same tokens", async () => {
    const { generated, stats } = await child(
      { K3_BAD_DISK_ONCE_OPEN: "eio-once" },
      { tuning: { blockBytes: 4096, expertsCached: 0 } },
    );
    expect(generated).toEqual(expected);
    expect(stats!.retries).toBeGreaterThan(0);
  });

  test.each([{}, { pace: "memory" }, { pace: "disk" }])(
    "that gives short reads: the same tokens (%j)",
    async (tuning) => {
      const { generated } = await child(
        { K3_BAD_DISK: "short" },
        { tuning: { ...tuning, expertsCached: 0 } },
      );
      expect(generated).toEqual(expected);
    },
  );

  test("that refuses O_DIRECT: buffered, and said so", async () => {
    const { generated, stats } = await child({ K3_BAD_DISK: "no-direct" });
    expect(generated).toEqual(expected);
    expect(stats!.bufferedFiles).toBeGreaterThan(0);
  });

  test.each([
    ["an expert", "disk"],
    ["an expert", "memory"],
    ["a matrix of the trunk", "disk"],
    ["a matrix of the trunk", "memory"],
  ] as const)("that cannot read %s (pace: %s): exit 4 and the file's name", async (what, pace) => {
    const { dense, experts } = await openCheckpoint(miniature.dir);
    const matrix = dense.find(({ name }) => name.endsWith("layers.1.self_attn.o_proj.weight"))!;
    // All experts of the last layer, so that one of them is chosen.
    const last = (experts.layers.length - 1) * experts.experts * experts.parts;
    const [begin, end] =
      what === "an expert"
        ? [Math.min(...experts.offsets.subarray(last)), Math.max(...experts.offsets.subarray(last))]
        : [matrix.offset, matrix.offset + matrix.bytes];
    const range = { K3_BAD_DISK_ONCE_OPEN: "eio", K3_BAD_RANGE: `${begin}-${end}` };
    const { code, exit, message } = await child(range, {
      tuning: { pace, blockBytes: 4096, expertsCached: 0 },
    });
    expect(code).toBe("E_READ");
    expect(exit).toBe(4);
    expect(message).toContain("Input/output error");
    expect(message).toMatch(/model-\d+-of-\d+\.safetensors: \d+ bytes at \d+ could not be read/);
  });

  test("process.exit in the middle of a step on a slow disk ends at once", async () => {
    const started = performance.now();
    const exit = await new Promise<number | null>((resolve) => {
      const script = join(import.meta.dirname, "faults/child.mjs");
      const request = JSON.stringify({ modelDir: miniature.dir, ids, generate: 99, exitAfterMs: 1500 });
      const env = { ...process.env, LD_PRELOAD: preload(), K3_BAD_DISK: "slow" };
      spawn(process.execPath, [script, request], { env, stdio: "ignore" }).on("exit", resolve);
    });
    expect(exit).toBe(42);
    expect(performance.now() - started).toBeLessThan(60_000);
  });
});

describe("a system that gives few threads", () => {
  // The workers but the first, the readers of the trunk, those of experts, and the one that runs passes.
  const wanted = 3 + 8 + 8 + 1;

  test.each([0, 1, 5, 13, wanted - 1])("(%i): exit 5 and what they were for", async (fewThreads) => {
    const { code, exit, message } = await child({}, { threads: 4, fewThreads });
    expect(message).toContain("gives no thread to");
    expect(code).toBe("E_MEMORY");
    expect(exit).toBe(5);
  });

  test("as many as are needed: the same tokens", async () => {
    expect((await child({}, { threads: 4, fewThreads: wanted })).generated).toEqual(expected);
  });
});

describe("files that change", () => {
  const copyOf = (use: (dir: string) => Promise<void>) =>
    withTempDir(async (root) => {
      const dir = join(root, "model");
      await cp(miniature.dir, dir, { recursive: true });
      await use(dir);
    });

  test("a shard that is cut off after it was opened: exit 4, what changed", () =>
    copyOf(async (dir) => {
      const model = await Model.open({ modelDir: dir, memory: 8e9, contextTokens: 64 });
      for (const file of await readdir(dir))
        if (file.endsWith(".safetensors")) await truncate(join(dir, file), 4096);
      const session = model.session();
      await expect(session.prefill(ids)).rejects.toMatchObject({
        code: "E_READ",
        exit: 4,
        message: expect.stringContaining("now has 4096 bytes"),
      });
      // The session is lost, the model is not closed by it.
      await expect(session.prefill(ids)).rejects.toMatchObject({ code: "E_USAGE" });
      await model.close();
    }));

  test("weights that are written over between two passes: exit 3, no token of a mixture", () =>
    copyOf(async (dir) => {
      const { shards } = await openCheckpoint(dir);
      const { file, size } = shards[3]!;
      const model = await Model.open({ modelDir: dir, memory: 8e9, contextTokens: 64 });
      const session = model.session();
      await session.prefill(ids);
      const handle = await open(join(dir, file), "r+");
      await handle.write(Buffer.alloc(1000, 0x31), 0, 1000, size - 1000);
      await handle.close();
      await expect(session.generate({ maxTokens: 2 }).next()).resolves.toMatchObject({ done: false });
      await expect(session.prefill([1])).rejects.toMatchObject({
        code: "E_DATA",
        exit: 3,
        message: expect.stringContaining(`${file}: was written to`),
      });
      expect(session.broken).toBe(true);
      await model.close();
    }));

  test("a shard that is replaced by another of its name: the opened one is read to the end", () =>
    copyOf(async (dir) => {
      const model = await Model.open({ modelDir: dir, memory: 8e9, contextTokens: 64 });
      for (const file of await readdir(dir)) {
        if (!file.endsWith(".safetensors")) continue;
        const { size } = await stat(join(dir, file));
        await writeFile(join(dir, "new"), Buffer.alloc(size, 0x31));
        await rename(join(dir, "new"), join(dir, file));
      }
      const session = model.session();
      await session.prefill(ids);
      const generated: number[] = [];
      for await (const { id } of session.generate({ maxTokens: 4 })) generated.push(id);
      expect(generated).toEqual(expected);
      await model.close();
    }));

  test("a shard that is replaced, on a filesystem that then refuses O_DIRECT: exit 4, not the other's weights", () =>
    copyOf(async (dir) => {
      const replace = (await readdir(dir)).filter((file) => file.endsWith(".safetensors"));
      const { code, message } = await child(
        { K3_BAD_DISK_ONCE_OPEN: "no-direct" },
        { modelDir: dir, replace: replace.map((file) => join(dir, file)) },
      );
      expect(code).toBe("E_READ");
      expect(message).toContain("changed or replaced");
    }));

  test("a trunk with a flipped bit: exit 3, the block is named", () =>
    withTempDir(async (root) => {
      for (const codec of ["bf16", "none"] as const) {
        const dir = join(root, codec);
        await cp(miniature.trunks[codec], dir, { recursive: true });
        const { dataPath, table } = await openTrunk(dir);
        const at = table.offset[table.blocks >> 1]! + 10;
        const file = await open(dataPath, "r+");
        const bytes = Buffer.alloc(1);
        await file.read(bytes, 0, 1, at);
        bytes[0]! ^= 4;
        await file.write(bytes, 0, 1, at);
        await file.close();
        for (const pace of ["disk", "memory"] as const) {
          const run = continueWith({ modelDir: miniature.dir, trunkDir: dir, tuning: { pace } }, ids, 2);
          await expect(run).rejects.toMatchObject({
            code: "E_DATA",
            exit: 3,
            message: expect.stringContaining("block"),
          });
        }
      }
    }));

  test("a trunk of another checkpoint: exit 3, what differs", () =>
    copyOf(async (dir) => {
      const config = await readFile(join(dir, "config.json"), "utf8");
      await writeFile(join(dir, "config.json"), `${config}\n`);
      const opening = Model.open({ modelDir: dir, trunkDir: miniature.trunks.bf16, memory: 8e9 });
      await expect(opening).rejects.toMatchObject({
        code: "E_DATA",
        exit: 3,
        message: expect.stringContaining("config.json"),
      });
    }));
});
