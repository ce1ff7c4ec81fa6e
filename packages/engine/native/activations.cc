#include <algorithm>

#include "forward.h"

namespace k3 {

size_t Activations::carve(uint8_t* base, const Weights& weights, uint32_t tokens) {
  const Config& c = weights.config;
  const size_t t = tokens, hidden = c.hidden, kda = c.kda.width(), heads = c.mla.heads;
  const size_t top = c.experts_per_token, pairs = t * top;
  const bool any_moe = c.moe_layers() > 0;
  Carver carver(base);
  const auto floats = [&](size_t n) { return carver.take<float>(n); };

  prefix = floats(t * hidden);
  blocks = floats(t * hidden * c.snapshots());
  mixed = floats(t * hidden);
  normed = floats(t * hidden);
  out = floats(t * hidden);
  fold = floats(hidden);
  norm = floats(hidden);
  taps = floats(3 * kda * c.kda.conv);
  rate = floats(c.kda.heads);
  dt_bias = floats(kda);
  o_norm = floats(c.kda.dim);
  q_norm = floats(c.mla.q_lora);
  kv_norm = floats(c.mla.kv_lora);
  router_bias = floats(c.experts);
  latent_norm = floats(c.latent);
  kept = carver.take<uint8_t>(weights.kept_bytes());

  // Attention and feed-forward are never alive together.
  const size_t mark = carver.mark();
  q = floats(t * std::max(kda, heads * c.mla.query()));
  gate = floats(t * std::max(kda, heads * c.mla.v_dim));
  const size_t after_gate = carver.mark();
  k = floats(t * kda);
  v = floats(t * kda);
  decay = floats(t * kda);
  f_a = floats(t * c.kda.dim);
  beta = floats(t * c.kda.heads);
  carver.rewind(after_gate);
  attended = floats(t * heads * c.mla.v_dim);
  q_lora = floats(t * c.mla.q_lora);
  latent = floats(t * c.mla.latent());
  size_t kv_b_bytes = 0;
  for (uint32_t l = 0; l < c.layers; ++l) {
    if (c.is_mla[l]) kv_b_bytes = std::max(kv_b_bytes, weights.tensors[weights.role(l, kKvB)].bytes());
  }
  kv_b = carver.take<uint8_t>(kv_b_bytes);

  carver.rewind(mark);
  size_t width = c.shared_inner;
  if (c.moe_layers() < c.layers) width = std::max<size_t>(width, c.intermediate);
  hidden_gate = floats(t * width);
  hidden_up = floats(t * width);
  if (any_moe) {
    scores = floats(t * c.experts);
    z = floats(t * c.latent);
    chosen = carver.take<uint16_t>(pairs);
    share = floats(pairs);
    entry = carver.take<uint32_t>(pairs);
    expert_in = floats(pairs * c.latent);
    expert_gate = floats(pairs * c.moe_inner);
    expert_up = floats(pairs * c.moe_inner);
    expert_out = floats(pairs * c.latent);
    mixed_latent = floats(t * c.latent);
  }
  return carver.peak();
}

size_t worker_floats(const Config& c) {
  const size_t kda = size_t{5} * c.kda.dim;
  const size_t mla = 16 * (2 * size_t{c.mla.latent()} + kKeyTile + 2);
  const size_t moe = std::max(c.latent, c.moe_inner);
  return round_up(std::max({kda, mla, moe, size_t{c.snapshots()} + 1}) + 64, 16);
}

}  // namespace k3
