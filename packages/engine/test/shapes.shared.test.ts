import { python, Random, title, withTempDir } from "@k3/testkit";
import { describe, expect, test } from "vitest";
import { continueWith, makeCheckpoint, numpyRun } from "./reference.ts";

const numpy = python();
const SHAPES = process.env["K3_NIGHTLY"] ? 200 : 32;

/** A shape of a model from a seed: widths that are no multiple of a vector, one expert, many blocks, long prompts. */
function shape(seed: number) {
  const random = new Random(seed);
  const pick = <T>(...choices: T[]): T => choices[random.below(choices.length)]!;
  const between = (least: number, most: number) => least + random.below(most - least + 1);
  const layers = between(1, 9);
  const experts = pick(1, 2, 5, 16, 33);
  const set = {
    hidden_size: pick(32, 40, 72, 128, 200),
    num_hidden_layers: layers,
    vocab_size: pick(512, 600, 777),
    intermediate_size: pick(24, 64, 100),
    first_k_dense_replace: Math.min(layers, between(0, 3)),
    num_attention_heads: between(1, 5),
    q_lora_rank: pick(8, 24, 33),
    kv_lora_rank: pick(8, 20, 32),
    qk_nope_head_dim: pick(4, 12, 16),
    qk_rope_head_dim: pick(2, 4, 8),
    v_head_dim: pick(4, 10, 16),
    num_experts: experts,
    num_experts_per_token: between(1, Math.min(experts, 6)),
    num_shared_experts: between(0, 3),
    routed_expert_hidden_size: pick(32, 64, 96),
    moe_intermediate_size: pick(32, 64, 96),
    attn_res_block_size: between(1, layers + 2),
    kda_heads: between(1, 5),
    kda_head_dim: pick(4, 8, 10, 16),
    conv: between(2, 4),
  };
  const prompt = Array.from({ length: pick(1, 2, 5, 17, 64, 65, seed % 16 === 0 ? 300 : 33) }, () =>
    random.below(set.vocab_size),
  );
  return {
    set,
    layers,
    prompt,
    chunk: pick(1, 3, 7, 64, 128),
    run: seed % 5 === 0 ? between(1, layers) : layers,
  };
}

describe.skipIf(numpy.skip)(title("random shapes against NumPy", numpy), () => {
  test.concurrent.each(Array.from({ length: SHAPES }, (_, seed) => seed + 1))("shape %i", async (seed) => {
    const { set, layers, prompt, chunk, run } = shape(seed);
    await withTempDir(async (dir) => {
      await makeCheckpoint(numpy.path!, dir, { seed, shards: 1 + (seed % (layers + 1)), set });
      const expected = await numpyRun(numpy.path!, dir, prompt, 4, run);
      // Where two candidates are closer than float32 can tell, either may win.
      const clear = Math.min(expected.smallest_margin ?? 1, expected.smallest_router_gap ?? 1) > 1e-4;
      const pace = seed % 2 === 0 ? "memory" : "disk";
      const options = { modelDir: dir, chunk, layers: run, tuning: { blockBytes: 4096, pace } } as const;
      const { generated } = await continueWith(options, prompt, 4);
      if (clear) expect(generated, JSON.stringify(set)).toEqual(expected.generated_ids);
      else expect(generated).toHaveLength(4);
    });
  });
});
