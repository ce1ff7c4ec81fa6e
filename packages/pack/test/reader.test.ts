// A reader in another language, written from docs/trunk-format.md alone, finds the checkpoint in the trunk.
import { execFileSync, spawnSync } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { openTrunk } from "@k3/trunk";
import { describe, expect, it } from "vitest";
import { pack } from "../src/index.ts";
import { temporaryDirectory, writeCheckpoint } from "./fixture.ts";

const python = ["python3", "/usr/bin/python3"].find(
  (name) => spawnSync(name, ["-c", "import zlib"]).status === 0,
);
const reader = join(import.meta.dirname, "reader.py");

const title = python ? "the Python reader" : "the Python reader (skipped: there is no python3)";
describe.skipIf(!python)(title, () => {
  const read = (trunkDir: string, modelDir: string) =>
    execFileSync(python!, [reader, trunkDir, modelDir], {
      encoding: "utf8",
      stdio: ["ignore", "pipe", "pipe"],
    });

  it.each(["bf16", "none"] as const)("reads codec %s", async (codec) => {
    const root = await temporaryDirectory();
    const [modelDir, trunkDir] = [join(root, "model"), join(root, "trunk")];
    await writeCheckpoint(modelDir);
    await pack({ modelDir, trunkDir, codec, blockBytes: 16_384 });
    const { table, manifest } = await openTrunk(trunkDir);
    const coded = table.codec.filter((c) => c === 1).length;
    expect(read(trunkDir, modelDir)).toBe(
      `${manifest.tensors.length} tensors, ${table.blocks} blocks, ${coded} of them coded: all as in the checkpoint\n`,
    );
    expect(coded > 0).toBe(codec === "bf16");
  });

  it("fails on a trunk that is damaged, or of another checkpoint", async () => {
    const root = await temporaryDirectory();
    const [modelDir, trunkDir, other] = [join(root, "model"), join(root, "trunk"), join(root, "other")];
    await writeCheckpoint(modelDir);
    await writeCheckpoint(other, { seed: 2 });
    await pack({ modelDir, trunkDir, blockBytes: 16_384 });
    expect(() => read(trunkDir, other)).toThrow(/AssertionError/);
    const { dataPath, table } = await openTrunk(trunkDir);
    const bytes = await readFile(dataPath);
    bytes[table.offset[1]! + 100]! ^= 1;
    await writeFile(dataPath, bytes);
    expect(() => read(trunkDir, modelDir)).toThrow(/AssertionError/);
  });
});
