import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { byteArithmetic, layerBytesOf } from "../src/arithmetic.ts";
import { parseConfig } from "../src/config.ts";
import { PUBLISHED_RUNS, RELEASE, releasedConfig } from "../src/release.ts";
import { releasedShard, releasedShardCount } from "../src/released-layout.ts";

const shared = process.env["K3_SHARED"];
const title = shared ? "the released checkpoint" : "the released checkpoint (skipped: K3_SHARED is not set)";

describe.skipIf(!shared)(title, () => {
  const released = join(shared ?? "", "data/released");
  const facts = shared ? JSON.parse(readFileSync(join(released, "facts.json"), "utf8")) : {};
  const config = shared
    ? parseConfig(readFileSync(join(released, "config.json")), "config.json")
    : releasedConfig();
  const sizes = byteArithmetic(config);

  test("its config.json is the one that is restated here", () => {
    expect(config).toEqual(releasedConfig());
  });

  test("its bytes follow from its config.json", () => {
    expect({
      tensors_routed: sizes.tensors.routed,
      tensors_text_trunk: sizes.tensors.dense,
      trunk_bytes: sizes.trunkBytes,
      layer_bytes: {
        dense_kda: layerBytesOf(config, "kda", "dense"),
        moe_kda: layerBytesOf(config, "kda", "moe"),
        moe_mla: layerBytesOf(config, "mla", "moe"),
      },
      expert_bytes: sizes.expertBytes,
      routed_bytes: sizes.routedBytes,
      embed_bytes: sizes.embedBytes,
      lm_head_bytes: sizes.lmHeadBytes,
      expert_bytes_per_token: sizes.expertBytesPerToken,
      kda_state_bytes: sizes.kdaStateBytes,
      mla_latent_bytes_per_token_fp32: sizes.latentBytesPerToken,
      tensor_bytes: sizes.textBytes + RELEASE.visionBytes,
    }).toEqual(
      Object.fromEntries(
        (
          "tensors_routed tensors_text_trunk trunk_bytes layer_bytes expert_bytes routed_bytes embed_bytes " +
          "lm_head_bytes expert_bytes_per_token kda_state_bytes mla_latent_bytes_per_token_fp32 tensor_bytes"
        )
          .split(" ")
          .map((key) => [key, facts[key]]),
      ),
    );
  });

  test("its 96 files have the published sizes, headers included", () => {
    const shards = Array.from({ length: releasedShardCount(config) }, (_, i) => releasedShard(config, i + 1));
    expect(Object.fromEntries(shards.map(({ file, size }) => [file, size]))).toEqual(facts.shards);
    expect(shards.reduce((sum, { size }) => sum + size, 0)).toBe(facts.shard_bytes);
    expect(shards.reduce((sum, { entries }) => sum + entries.length, 0)).toBe(facts.tensors);
    const vision = shards.slice(-2).flatMap(({ entries }) => entries);
    expect(vision.length).toBe(facts.tensors_vision);
    expect(vision.reduce((sum, { begin, end }) => sum + end - begin, 0)).toBe(facts.vision_bytes);
  });

  test("expert 0 of layer 1 is where it was found in the real file", () => {
    const shard = releasedShard(config, 2);
    const { tensors, ...rest } = facts.expert_0_layer_1;
    expect({ shard: shard.file, data_starts_at: shard.dataStart }).toEqual(rest);
    const prefix = "language_model.model.layers.1.block_sparse_moe.experts.0.";
    expect(
      shard.entries.flatMap(({ name, begin, end }) =>
        name.startsWith(prefix) ? [[name.slice(prefix.length), begin, end - begin]] : [],
      ),
    ).toEqual(tensors);
  });

  test("the constants that are restated here", () => {
    expect(RELEASE).toMatchObject({
      repo: facts.repo,
      revision: facts.revision,
      shards: Object.keys(facts.shards).length,
      tensors: facts.tensors,
      tensorBytes: facts.tensor_bytes,
      shardBytes: facts.shard_bytes,
      visionBytes: facts.vision_bytes,
      configSha256: facts.files["config.json"].sha256,
      tokenizer: { bytes: facts.files["tiktoken.model"].bytes, sha256: facts.files["tiktoken.model"].sha256 },
    });
    expect(PUBLISHED_RUNS[0]).toMatchObject({
      prompt: facts.verification.prompt,
      promptIds: facts.verification.prompt_ids,
      greedyIds: facts.verification.greedy_ids,
      text: facts.verification.greedy_text,
    });
  });

  test("the config of the first-party miniature is accepted: flat, and without most token ids", () => {
    const anchor = parseConfig(readFileSync(join(shared!, "data/anchor-config.json")), "anchor-config.json");
    expect(anchor).toMatchObject({ layers: 93, bosId: null, endIds: [], padId: 255, quantization: null });
  });
});
