import { closeSync, copyFileSync, openSync, renameSync, writeSync } from "node:fs";
import { cp, open, readdir, readFile, rename, stat, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { openCheckpoint } from "@k3/checkpoint";
import { runAtOnce } from "@k3/stage";
import { withTempDir } from "@k3/testkit";
import { openTrunk } from "@k3/trunk";
import { beforeAll, describe, expect, test } from "vitest";
import { Model } from "../src/index.ts";
import { loadNative } from "../src/loader.ts";
import { buildTables } from "../src/tables.ts";
import { badDisk, child } from "./faults/child.ts";
import { type PackedMiniature, packedMiniature } from "./miniature.ts";
import { continueWith } from "./reference.ts";

const ids = Array.from({ length: 20 }, (_, i) => (i * 31 + 5) % 180);
let miniature: PackedMiniature;
let expected: number[];

beforeAll(async () => {
  miniature = await packedMiniature();
  expected = (await continueWith({ modelDir: miniature.dir }, ids, 4)).generated;
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

  /** Opens a model whose files change when their headers have been read, before the engine opens them. */
  const openMeanwhile = (dir: string, change: () => void) => {
    let once = change as (() => void) | null;
    return Model.open({
      ...{ modelDir: dir, memory: 8e9, contextTokens: 64 },
      onEvent: (event) => {
        if (event.type !== "progress" || event.phase !== "reading headers" || event.done !== event.total)
          return;
        once?.();
        once = null;
      },
    });
  };

  test("two shards of one size that change places after their headers were read: exit 3 and a name", () =>
    copyOf(async (dir) => {
      const { shards, experts } = await openCheckpoint(dir);
      // Of the layers with experts, which all have the same size.
      const [one, other] = [...new Set(experts.shards)].map((shard) => shards[shard]!);
      expect(one!.size).toBe(other!.size);
      const opening = openMeanwhile(dir, () => {
        renameSync(join(dir, one!.file), join(dir, "aside"));
        renameSync(join(dir, other!.file), join(dir, one!.file));
        renameSync(join(dir, "aside"), join(dir, other!.file));
      });
      await expect(opening).rejects.toMatchObject({
        code: "E_DATA",
        exit: 3,
        message: expect.stringMatching(/model-\d+-of-\d+\.safetensors: was replaced or written to/),
      });
    }));

  test("a shard that is written over after its header was read: exit 3 and its name", () =>
    copyOf(async (dir) => {
      const { shards } = await openCheckpoint(dir);
      const { file, size } = shards[3]!;
      const opening = openMeanwhile(dir, () => {
        const descriptor = openSync(join(dir, file), "r+");
        writeSync(descriptor, Buffer.alloc(100, 0x31), 0, 100, size - 100);
        closeSync(descriptor);
      });
      await expect(opening).rejects.toMatchObject({ code: "E_DATA", message: expect.stringContaining(file) });
    }));

  test("a trunk that is packed again after its table was read: exit 3 and its name", () =>
    withTempDir(async (root) => {
      const trunkDir = join(root, "trunk");
      await cp(miniature.trunks.bf16, trunkDir, { recursive: true });
      const trunk = await openTrunk(trunkDir);
      copyFileSync(trunk.dataPath, join(root, "again"));
      renameSync(join(root, "again"), trunk.dataPath);
      const checkpoint = await openCheckpoint(miniature.dir);
      const engine = new (loadNative().NativeEngine)(runAtOnce(buildTables(checkpoint, trunk)));
      await engine.prepare();
      const { blockBytes } = engine.sizes();
      const counts = { threads: 1, chunk: 1, trunkReaders: 1, ringSlots: 2, expertReaders: 1 };
      const none = { expertsCached: 0, expertsInFlight: 1, census: new Float32Array(0), pace: 0, isa: "" };
      const opening = () =>
        engine.open({ ...counts, ...none, pinned: new Uint8Array(blockBytes.length), direct: true });
      expect(opening).toThrow(
        expect.objectContaining({ code: "E_DATA", message: expect.stringContaining(trunk.dataPath) }),
      );
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
      const env = { ...(await badDisk("faults-changed-files")), K3_BAD_DISK_ONCE_OPEN: "no-direct" };
      const files = replace.map((file) => join(dir, file));
      const { code, message } = await child(env, { modelDir: dir, ids, generate: 4, replace: files });
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
