import { mkdtemp, open, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";
import {
  BlockJob,
  layoutBlocks,
  PART_FILE,
  publishTrunk,
  type SourceTensor,
  tensorRows,
} from "../src/index.ts";
import { bytesOf, normalBf16 } from "./weights.ts";

export async function temporaryDirectory(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), "k3-trunk-"));
  onTestFinished(() => rm(dir, { recursive: true, force: true }));
  return dir;
}

export const SOURCE = {
  revision: "0123456789abcdef0123456789abcdef01234567",
  configSha256: "c".repeat(64),
  shards: [{ file: "model-00001-of-000001.safetensors", size: 1_000_000, headerSha256: "a".repeat(64) }],
};

const SHAPES: [string, "BF16" | "F32", number[], number | null][] = [
  ["0.norm", "BF16", [96], 0],
  ["0.taps", "F32", [32, 1, 4], 0],
  ["0.q", "BF16", [300, 96], 0],
  ["1.norm", "BF16", [96], 1],
  ["1.o", "BF16", [96, 256], 1],
  ["norm", "BF16", [96], null],
  ["head", "BF16", [500, 96], null],
];

/** Packs a few seeded tensors from one file of weights, without a checkpoint around them. */
export async function writeSmallTrunk(codec: "bf16" | "none" = "bf16", threads = 2) {
  const dir = await temporaryDirectory();
  const weights = join(dir, "weights");
  let offset = 24; // as behind a header: no alignment to speak of
  const tensors: SourceTensor[] = SHAPES.map(([name, dtype, shape, layer]) => {
    const tensor = { name, dtype, shape, layer, shard: 0, offset };
    const { rows, rowBytes } = tensorRows(tensor);
    offset += rows * rowBytes;
    return tensor;
  });
  const content = new Uint8Array(offset);
  content.set(bytesOf(normalBf16((offset - 24) / 2, 0.05, 4)), 24);
  await writeFile(weights, content);

  const blockBytes = 8192;
  const layout = layoutBlocks(tensors, { blockBytes });
  const part = await open(join(dir, PART_FILE), "w");
  await part.truncate(1 << 22);
  await part.close();
  const options = { shards: [weights], tensors, layout, codec, threads };
  const job = BlockJob.write(options, join(dir, PART_FILE));
  await job.finish();
  const results = job.results(0, layout.blocks);
  job.close();
  const manifest = await publishTrunk(dir, { codec, blockBytes, source: SOURCE, tensors, layout, results });
  return { dir, manifest, options, content, weights };
}
