// Block attention residuals: what a sublayer sees is a softmax-weighted sum of the closed blocks and the
// running one.
#include <cmath>

#include "forward.h"

namespace k3 {

// out[t] = sum over the sources v of p(v) v, where p is the softmax of <v, norm * proj> / rms(v). The values
// are mixed raw; only the scores see them normalised.
void Forward::mix(uint32_t level, Role norm, Role proj, float* out) {
  const uint32_t width = c_.hidden;
  vector(level, norm, width, a_.norm);
  vector(level, proj, width, a_.fold);
  for (uint32_t i = 0; i < width; ++i) a_.fold[i] = a_.norm[i] * a_.fold[i];
  const uint32_t sources = snapshots_ + 1;
  pool_.run(tokens_, [&](uint32_t t, uint32_t worker) {
    float* p = workers_[worker].floats;
    const auto source = [&](uint32_t s) {
      return s < snapshots_ ? a_.blocks + (size_t{s} * tokens_ + t) * width : a_.prefix + size_t{t} * width;
    };
    float most = 0;
    for (uint32_t s = 0; s < sources; ++s) {
      const float* v = source(s);
      const float mean = kernels_.sum_squares(v, width) / static_cast<float>(width);
      p[s] = kernels_.dot(v, a_.fold, width) * (1.0f / std::sqrt(mean + c_.rms_norm_eps));
      if (s == 0 || p[s] > most) most = p[s];
    }
    for (uint32_t s = 0; s < sources; ++s) p[s] -= most;
    kernels_.exp(p, sources, p);
    float sum = 0;
    for (uint32_t s = 0; s < sources; ++s) sum += p[s];
    float* o = out + size_t{t} * width;
    kernels_.scale(source(0), p[0] / sum, width, o);
    for (uint32_t s = 1; s < sources; ++s) kernels_.axpy(p[s] / sum, source(s), width, o);
  });
}

}  // namespace k3
