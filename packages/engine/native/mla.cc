// Gated multi-head latent attention without positions, always in the absorbed form: the cache holds one
// latent per token, and queries are brought into its space instead of keys out of it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "forward.h"

namespace k3 {

bool Forward::mla(uint32_t layer, SessionState& state) {
  const Config::Mla& m = c_.mla;
  const size_t query = size_t{m.heads} * m.query(), out = size_t{m.heads} * m.v_dim, latent = m.latent();
  const auto tensor = [&](Role role) { return weights_.role(layer, role); };
  vector(layer, kQNorm, m.q_lora, a_.q_norm);
  vector(layer, kKvNorm, m.kv_lora, a_.kv_norm);

  const float* x = a_.normed;
  const size_t in = c_.hidden;
  const Product q_a{tensor(kQa), x, in, a_.q_lora, m.q_lora}, kv_a{tensor(kKvA), x, in, a_.latent, latent};
  if (!(m.gate ? matmul_->multiply({q_a, kv_a, {tensor(kG), x, in, a_.gate, out}}, tokens_)
               : matmul_->multiply({q_a, kv_a}, tokens_))) {
    return false;
  }
  uint32_t index = 0;
  for (uint32_t l = 0; l < layer; ++l) index += c_.is_mla[l];
  float* cache = state.latents(index);
  for (uint32_t t = 0; t < tokens_; ++t) {
    float* q = a_.q_lora + size_t{t} * m.q_lora;
    kernels_.rms_norm(q, a_.q_norm, kMlaNormEps, m.q_lora, q);
    const float* c = a_.latent + t * latent;
    float* to = cache + (state.position + t) * latent;
    kernels_.rms_norm(c, a_.kv_norm, kMlaNormEps, m.kv_lora, to);
    std::memcpy(to + m.kv_lora, c + m.kv_lora, m.rope * sizeof(float));  // not normed, not rotated
  }
  if (!matmul_->multiply({{tensor(kQb), a_.q_lora, m.q_lora, a_.q, query}}, tokens_) ||
      !matmul_->materialize(tensor(kKvB), a_.kv_b)) {
    return false;
  }
  // A few heads a task: enough tasks for all workers, few enough passes over the cached latents.
  const uint32_t wanted = std::max(1u, (4 * pool_.threads() + tokens_ - 1) / tokens_);
  const uint32_t group = std::clamp(m.heads / wanted, 1u, 16u);
  const uint32_t groups = (m.heads + group - 1) / group;
  const Dtype dtype = weights_.tensors[tensor(kKvB)].dtype;
  pool_.run(tokens_ * groups, [&](uint32_t task, uint32_t worker) {
    if (step_.stopped()) return;
    const uint32_t t = task / groups, head = task % groups * group;
    mla_heads(t, head, std::min(group, m.heads - head), state.position + t, dtype, cache,
              workers_[worker].floats);
  });
  return matmul_->multiply({{tensor(kO), a_.attended, out, a_.out, c_.hidden}}, tokens_);
}

// Some heads of one token. The softmax runs over tiles of kKeyTile keys counted from position 0, whatever the
// chunk.
void Forward::mla_heads(uint32_t token, uint32_t head, uint32_t heads, uint32_t position, Dtype dtype,
                        const float* latents, float* scratch) {
  const Config::Mla& m = c_.mla;
  const size_t latent = m.latent(), rows = m.nope + m.v_dim, row_bytes = m.kv_lora * dtype_bytes(dtype);
  float* query = scratch;                   // [heads][latent]
  float* sum = query + heads * latent;      // [heads][latent]
  float* scores = sum + heads * latent;     // [heads][kKeyTile]
  float* most = scores + heads * kKeyTile;  // [heads]
  float* weight = most + heads;             // [heads]
  const auto kv_b = [&](uint32_t h, size_t row) { return a_.kv_b + ((head + h) * rows + row) * row_bytes; };

  std::memset(query, 0, 2 * heads * latent * sizeof(float));
  for (uint32_t h = 0; h < heads; ++h) {
    const float* q = a_.q + (size_t{token} * m.heads + head + h) * m.query();
    float* absorbed = query + h * latent;
    if (dtype == Dtype::bf16) {
      kernels_.accumulate_rows_bf16(reinterpret_cast<const uint16_t*>(kv_b(h, 0)), m.nope, m.kv_lora, q,
                                    absorbed);
    } else {
      kernels_.accumulate_rows_f32(reinterpret_cast<const float*>(kv_b(h, 0)), m.nope, m.kv_lora, q,
                                   absorbed);
    }
    std::memcpy(absorbed + m.kv_lora, q + m.nope, m.rope * sizeof(float));
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(m.query()));
  for (uint32_t base = 0; base <= position; base += kKeyTile) {
    const uint32_t keys = std::min(kKeyTile, position + 1 - base);
    const float* tile = latents + base * latent;
    kernels_.matmul_f32(tile, keys, latent, query, latent, heads, scores, kKeyTile);
    for (uint32_t h = 0; h < heads; ++h) {
      float* s = scores + h * kKeyTile;
      kernels_.scale(s, scale, keys, s);
      float top = s[0];
      for (uint32_t j = 1; j < keys; ++j) top = std::max(top, s[j]);
      if (base == 0) {
        most[h] = top;
        weight[h] = 0;
      } else if (top > most[h]) {
        float shrink = most[h] - top;
        kernels_.exp(&shrink, 1, &shrink);
        kernels_.scale(sum + h * latent, shrink, latent, sum + h * latent);
        weight[h] *= shrink;
        most[h] = top;
      }
      for (uint32_t j = 0; j < keys; ++j) s[j] -= most[h];
      kernels_.exp(s, keys, s);
      for (uint32_t j = 0; j < keys; ++j) weight[h] += s[j];
      kernels_.accumulate_rows_f32(tile, keys, latent, s, sum + h * latent);
    }
  }
  for (uint32_t h = 0; h < heads; ++h) {
    float* mean = sum + h * latent;
    kernels_.scale(mean, 1.0f / weight[h], m.kv_lora, mean);
    const size_t at = (size_t{token} * m.heads + head + h) * m.v_dim;
    if (dtype == Dtype::bf16) {
      kernels_.matmul_bf16(reinterpret_cast<const uint16_t*>(kv_b(h, m.nope)), m.v_dim, m.kv_lora, mean,
                           latent, 1, a_.attended + at, m.v_dim);
    } else {
      kernels_.matmul_f32(reinterpret_cast<const float*>(kv_b(h, m.nope)), m.v_dim, m.kv_lora, mean, latent,
                          1, a_.attended + at, m.v_dim);
    }
    if (m.gate) kernels_.multiply_sigmoid(a_.attended + at, a_.gate + at, m.v_dim, a_.attended + at);
  }
}

}  // namespace k3
