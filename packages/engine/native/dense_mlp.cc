#include "forward.h"

namespace k3 {

// out = down(situ_glu(gate x, up x)): the first layers' feed-forward, and the shared experts as one.
bool Forward::dense_mlp(uint32_t gate, uint32_t up, uint32_t down, uint32_t width, float* out) {
  const size_t n = width;
  if (!matmul_->multiply(
          {{gate, a_.normed, c_.hidden, a_.hidden_gate, n}, {up, a_.normed, c_.hidden, a_.hidden_up, n}},
          tokens_)) {
    return false;
  }
  pool_.run(tokens_, [&](uint32_t t, uint32_t) {
    float* g = a_.hidden_gate + t * n;
    kernels_.situ_glu(g, a_.hidden_up + t * n, c_.situ_beta, c_.situ_linear_beta, n, g);
  });
  return matmul_->multiply({{down, a_.hidden_gate, n, out, c_.hidden}}, tokens_);
}

}  // namespace k3
