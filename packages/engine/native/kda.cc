// Kimi Delta Attention: a matrix per head, decayed per channel and corrected token by token.
#include <cmath>

#include "forward.h"

namespace k3 {

bool Forward::kda(uint32_t layer, SessionState& state) {
  const Config::Kda& k = c_.kda;
  const size_t width = k.width();
  const auto tensor = [&](Role role) { return weights_.role(layer, role); };
  for (uint32_t i = 0; i < 3; ++i)
    vector(layer, static_cast<Role>(kQConv + i), width * k.conv, a_.taps + i * width * k.conv);
  vector(layer, kALog, k.heads, a_.rate);
  kernels_.exp(a_.rate, k.heads, a_.rate);
  vector(layer, kDtBias, width, a_.dt_bias);
  vector(layer, kONorm, k.dim, a_.o_norm);

  const float* x = a_.normed;
  const size_t in = c_.hidden;
  if (!matmul_->multiply({{tensor(kQ), x, in, a_.q, width},
                          {tensor(kK), x, in, a_.k, width},
                          {tensor(kV), x, in, a_.v, width},
                          {tensor(kFa), x, in, a_.f_a, k.dim},
                          {tensor(kB), x, in, a_.beta, k.heads},
                          {tensor(kG), x, in, a_.gate, width}},
                         tokens_) ||
      !matmul_->multiply({{tensor(kFb), a_.f_a, k.dim, a_.decay, width}}, tokens_)) {
    return false;
  }
  kernels_.sigmoid(a_.beta, size_t{tokens_} * k.heads, a_.beta);
  uint32_t index = 0;
  for (uint32_t l = 0; l < layer; ++l) index += !c_.is_mla[l];
  const size_t matrix = size_t{k.dim} * k.dim, taps = size_t{3} * (k.conv - 1) * k.dim;
  pool_.run(k.heads, [&](uint32_t head, uint32_t worker) {
    kda_head(head, state.kda(index) + head * matrix, state.taps(index) + head * taps,
             workers_[worker].floats);
  });
  return matmul_->multiply({{tensor(kO), a_.q, width, a_.out, c_.hidden}}, tokens_);
}

// One head over the tokens of the chunk, in order: the recurrence is what chunks and single tokens have in
// common. The result takes the place of the head's queries.
void Forward::kda_head(uint32_t head, float* matrix, float* taps, float* scratch) {
  const Config::Kda& k = c_.kda;
  const size_t dim = k.dim, width = k.width(), channel = head * dim, history = (k.conv - 1) * dim;
  float *q = scratch, *key = q + dim, *value = key + dim, *alpha = value + dim, *out = alpha + dim;
  const float* conv = a_.taps + channel * k.conv;
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (uint32_t t = 0; t < tokens_; ++t) {
    const size_t at = t * width + channel;
    kernels_.short_conv(a_.q + at, conv, dim, k.conv, taps, q);
    kernels_.short_conv(a_.k + at, conv + width * k.conv, dim, k.conv, taps + history, key);
    kernels_.short_conv(a_.v + at, conv + 2 * width * k.conv, dim, k.conv, taps + 2 * history, value);
    kernels_.l2_norm(q, kUnitEps, query_scale, dim, q);
    kernels_.l2_norm(key, kUnitEps, 1.0f, dim, key);
    // alpha = exp(lower bound * sigmoid(exp(A) * (z + dt)))
    kernels_.add(a_.decay + at, a_.dt_bias + channel, dim, alpha);
    kernels_.scale(alpha, a_.rate[head], dim, alpha);
    kernels_.sigmoid(alpha, dim, alpha);
    kernels_.scale(alpha, k.gate_lower_bound, dim, alpha);
    kernels_.exp(alpha, dim, alpha);
    kernels_.kda_step(matrix, dim, q, key, value, alpha, a_.beta[size_t{t} * k.heads + head], out);
    kernels_.rms_norm(out, a_.o_norm, c_.rms_norm_eps, dim, out);
    kernels_.multiply_sigmoid(out, a_.gate + at, dim, a_.q + at);
  }
}

}  // namespace k3
