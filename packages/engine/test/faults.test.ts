import { spawn } from "node:child_process";
import { constants } from "node:os";
import { openCheckpoint } from "@k3/checkpoint";
import { openTrunk } from "@k3/trunk";
import { beforeAll, describe, expect, test } from "vitest";
import { badDisk, CHILD, type ChildResult, child as run } from "./faults/child.ts";
import { type PackedMiniature, packedMiniature } from "./miniature.ts";
import { continueWith } from "./reference.ts";

const ids = Array.from({ length: 20 }, (_, i) => (i * 31 + 5) % 180);
let miniature: PackedMiniature;
let expected: number[];
let env: NodeJS.ProcessEnv;

beforeAll(async () => {
  miniature = await packedMiniature();
  expected = (await continueWith({ modelDir: miniature.dir }, ids, 4)).generated;
  env = await badDisk("faults");
});

const child = (disk: Record<string, string>, options: Record<string, unknown> = {}): Promise<ChildResult> =>
  run({ ...env, ...disk }, { modelDir: miniature.dir, ids, generate: 4, ...options });

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

  test.each([
    ["when it is read", { K3_BAD_DISK: "no-direct" }],
    ["when it is read, as not supported", { K3_BAD_DISK: "not-supported" }],
    ["when it is opened", { K3_BAD_OPEN: `${constants.errno.EINVAL}` }],
    ["when it is opened, as not supported", { K3_BAD_OPEN: `${constants.errno.EOPNOTSUPP}` }],
  ])("that refuses O_DIRECT %s: buffered, and said so", async (_, disk) => {
    const { generated, stats } = await child(disk);
    expect(generated).toEqual(expected);
    expect(stats!.bufferedFiles).toBeGreaterThan(0);
  });

  test.each([
    ["EMFILE", "E_MEMORY", 5, "ulimit -n"],
    ["ENFILE", "E_MEMORY", 5, "fs.file-max"],
    ["EACCES", "E_USAGE", 2, "may not read"],
    ["ENOENT", "E_DATA", 3, "k3 verify"],
  ] as const)("whose files cannot be opened (%s): %s, and what to do", async (name, code, exit, advice) => {
    const result = await child({ K3_BAD_OPEN: `${constants.errno[name]}` });
    expect(result).toMatchObject({ code, exit });
    expect(result.message).toMatch(/safetensors: cannot be opened: ./);
    expect(result.hint).toContain(advice);
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

  test.each([
    ["bf16", "disk"],
    ["bf16", "memory"],
    ["none", "disk"],
    ["none", "memory"],
  ] as const)(
    "that cannot read the packed trunk (%s, pace: %s): exit 4 and the file's name",
    async (codec, pace) => {
      const trunkDir = miniature.trunks[codec];
      const { dataPath, table } = await openTrunk(trunkDir);
      const block = table.blocks >> 1;
      const begin = table.offset[block]!;
      const { code, exit, message } = await child(
        {
          ...{ K3_BAD_DISK_ONCE_OPEN: "eio", K3_BAD_FILE: "/trunk-" },
          K3_BAD_RANGE: `${begin}-${begin + table.storedBytes[block]!}`,
        },
        { trunkDir, tuning: { pace } },
      );
      expect({ code, exit }).toEqual({ code: "E_READ", exit: 4 });
      expect(message).toContain(`${dataPath}: `);
      expect(message).toMatch(/\d+ bytes at \d+ could not be read: Input\/output error/);
    },
  );

  test.each(["eio-once", "short"])("that is bad under a packed trunk (%s): the same tokens", async (disk) => {
    for (const trunkDir of [miniature.trunks.bf16, miniature.trunks.none]) {
      const where = { K3_BAD_DISK_ONCE_OPEN: disk, K3_BAD_FILE: "/trunk-" };
      const { generated, stats } = await child(where, { trunkDir });
      expect(generated).toEqual(expected);
      expect(stats!.retries > 0).toBe(disk === "eio-once");
    }
  });

  test("process.exit in the middle of a step on a slow disk ends at once", async () => {
    const started = performance.now();
    const exit = await new Promise<number | null>((resolve) => {
      const request = JSON.stringify({ modelDir: miniature.dir, ids, generate: 99, exitAfterMs: 1500 });
      const slow = { env: { ...env, K3_BAD_DISK: "slow" }, stdio: "ignore" } as const;
      spawn(process.execPath, [CHILD, request], slow).on("exit", resolve);
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
