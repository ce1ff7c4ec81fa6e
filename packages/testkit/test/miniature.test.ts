import { createHash } from "node:crypto";
import { mkdtemp, readFile, rm, stat, unlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openCheckpoint } from "@k3/checkpoint";
import type { StageEvent } from "@k3/stage";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  END_OF_MESSAGE,
  MINIATURE_SENTENCES,
  type Miniature,
  makeMiniature,
  miniatureSamples,
  ReferenceModel,
  readShard,
} from "../src/index.ts";

/** The same as `sha256sum FILES | sha256sum` in a directory of the default seed. Changes only when it is meant to. */
const PINNED = "81219853f42fb5a83783a4df4e4f6e1712c5290c772bd601893523f232092b6b";

let dir: string;
let made: Miniature;
const events: StageEvent[] = [];
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "k3-miniature-"));
  made = await makeMiniature(dir, { onEvent: (event) => events.push(event) });
}, 120_000);
afterAll(() => rm(dir, { recursive: true, force: true }));

async function fingerprint(): Promise<string> {
  const lines = await Promise.all(
    made.files.map(async (file) => {
      const hash = createHash("sha256").update(await readFile(join(dir, file)));
      return `${hash.digest("hex")}  ${file}\n`;
    }),
  );
  return createHash("sha256").update(lines.join("")).digest("hex");
}

describe("the files", () => {
  test("have the same bytes everywhere, and a second call restores what is missing or damaged", async () => {
    expect(await fingerprint()).toBe(PINNED);
    const kept = await stat(join(dir, made.files.at(-1)!));
    await unlink(join(dir, "model-00001-of-000012.safetensors"));
    await writeFile(join(dir, "tiktoken.model"), "damaged");
    expect(await makeMiniature(dir)).toMatchObject({ unchanged: false, bytes: made.bytes });
    expect(await fingerprint()).toBe(PINNED);
    expect(await makeMiniature(dir)).toMatchObject({ unchanged: true, bytes: made.bytes });
    expect((await stat(join(dir, made.files.at(-1)!))).mtimeMs).toBe(kept.mtimeMs);
  });

  test("are a checkpoint in the released layout", async () => {
    const checkpoint = await openCheckpoint(dir);
    expect(checkpoint.shards.map(({ file }) => file)).toEqual(
      Array.from({ length: 12 }, (_, i) => `model-${String(i + 1).padStart(5, "0")}-of-000012.safetensors`),
    );
    expect(checkpoint.config.attention.join(" ")).toBe("kda kda kda mla kda kda kda mla mla");
    expect(checkpoint.config.feedForward.slice(0, 2)).toEqual(["dense", "moe"]);
    expect(checkpoint.config.endIds).toEqual([END_OF_MESSAGE]);
    expect(checkpoint.experts).toMatchObject({ format: "mxfp4", parts: 6, experts: 16 });
    expect(checkpoint.opaque.tensors).toBe(6);
    // A layer is wholly in its shard, the model-level tensors in the next.
    for (const { layer, shard } of checkpoint.dense) expect(shard).toBe(layer ?? 9);
  });

  test("each shard: F32, BF16, U8, each by name, without gaps, the header padded with spaces to 8 bytes", async () => {
    const index = JSON.parse(await readFile(join(dir, "model.safetensors.index.json"), "utf8")) as {
      metadata: { total_size: number };
      weight_map: Record<string, string>;
    };
    let total = 0;
    for (const file of made.files.filter((name) => name.endsWith(".safetensors"))) {
      const bytes = await readFile(join(dir, file));
      const length = Number(bytes.readBigUInt64LE(0));
      expect(length % 8).toBe(0);
      const header = bytes.toString("utf8", 8, 8 + length);
      expect(header.startsWith('{"')).toBe(true);
      expect(header.trimEnd().length).toBeGreaterThan(length - 8);
      const entries = Object.entries(
        JSON.parse(header) as Record<string, { dtype: string; data_offsets: number[] }>,
      );
      const rank = ["F32", "BF16", "U8"];
      const keys = entries.map(([name, { dtype }]) => `${rank.indexOf(dtype)} ${name}`);
      expect(keys).toEqual(keys.toSorted());
      let end = 0;
      for (const [name, { data_offsets }] of entries) {
        expect(data_offsets[0]).toBe(end);
        end = data_offsets[1]!;
        expect(index.weight_map[name]).toBe(file);
      }
      expect(bytes.length).toBe(8 + length + end);
      total += end;
    }
    expect(index.metadata.total_size).toBe(total);
  });

  test("the padding of A_log is zero, experts use many scales and codes", async () => {
    const shard = await readShard(join(dir, "model-00002-of-000012.safetensors"));
    const aLog = shard.get("language_model.model.layers.1.self_attn.A_log")!;
    expect([aLog.dtype, aLog.shape]).toEqual(["F32", [32]]);
    expect(aLog.bytes.subarray(16).every((byte) => byte === 0)).toBe(true);
    const packed = shard.get("language_model.model.layers.1.block_sparse_moe.experts.10.w2.weight_packed")!;
    expect(packed.shape).toEqual([64, 32]);
    expect(new Set([...packed.bytes].flatMap((byte) => [byte & 15, byte >> 4])).size).toBe(16);
  });
});

describe("what it has learned", () => {
  test("the float64 pass over the files continues every sample to its end, by a clear lead", async () => {
    const model = await ReferenceModel.open(dir);
    const samples = miniatureSamples();
    expect(samples.length).toBeGreaterThanOrEqual(MINIATURE_SENTENCES.length + 6);
    for (const { name, promptIds, completionIds } of samples) {
      const { ids, smallestMargin } = model.generate(promptIds, completionIds.length + 5, [END_OF_MESSAGE]);
      expect({ name, ids }).toEqual({ name, ids: completionIds });
      expect(smallestMargin).toBeGreaterThan(6);
    }
    // So that float32 makes every routing decision that float64 makes.
    expect(model.smallestRouterGap).toBeGreaterThan(5e-5);
  });

  test("every layer takes part: without the last one it does not know the capital of France", async () => {
    const { promptIds, completionIds, completion } = miniatureSamples()[0]!;
    expect(completion).toBe(" Paris.<|end_of_msg|>");
    const model = await ReferenceModel.open(dir, { layers: 8 });
    expect(model.generate(promptIds, completionIds.length).ids).not.toEqual(completionIds);
  });

  test("conversations are in the published chat format", () => {
    const direct = miniatureSamples().find(({ name }) => name === "direct turn 1")!;
    expect(direct.prompt).toBe(
      '<|open|>message role="user"<|sep|>Hello!<|close|>message<|sep|><|end_of_msg|>' +
        '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>',
    );
    expect(direct.completion).toBe("Hi there!<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>");
    const thinking = miniatureSamples().find(({ name }) => name === "thinking turn 1")!;
    expect(
      thinking.prompt.startsWith('<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_'),
    ).toBe(true);
    expect(thinking.prompt).toContain("`thinking_effort=max`.<|close|>message<|sep|><|end_of_msg|>");
    expect(thinking.prompt.endsWith("<|open|>think<|sep|>")).toBe(true);
  });
});

test("another model's directory and a seed that is none are refused", async () => {
  await writeFile(join(dir, "model-00001-of-000096.safetensors"), "");
  await expect(makeMiniature(dir)).rejects.toMatchObject({ code: "E_USAGE" });
  await unlink(join(dir, "model-00001-of-000096.safetensors"));
  await expect(makeMiniature(join(dir, "x"), { seed: 0.5 })).rejects.toMatchObject({ code: "E_USAGE" });
});

test("it says how far it is and can be stopped", async () => {
  const phases = events.map((event) => (event.type === "progress" ? event.phase : ""));
  expect(new Set(phases)).toEqual(new Set(["making weights", "learning", "writing"]));
  const stopped = makeMiniature(join(dir, "never"), { signal: AbortSignal.abort() });
  await expect(stopped).rejects.toMatchObject({ code: "E_INTERRUPTED", exit: 130 });
  await expect(stat(join(dir, "never"))).rejects.toMatchObject({ code: "ENOENT" });
});
