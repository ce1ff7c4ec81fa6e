// Latent mixture of experts: a router over all experts, the chosen few in a narrower latent space, shared
// experts beside.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "forward.h"

namespace k3 {

namespace {

// Rows of an expert's matrix that make one task; about a quarter of a megabyte of packed weights.
constexpr uint32_t kTileRows = 128;

struct ExpertMatrix {
  uint32_t weights, scales;  // part numbers
  uint32_t rows, cols;
};

// w1 (gate), w2 (down), w3 (up), in the order of the parts.
ExpertMatrix expert_matrix(const Config& c, const ExpertTable& table, uint32_t which) {
  const bool down = which == 1;
  const uint32_t rows = down ? c.latent : c.moe_inner, cols = down ? c.moe_inner : c.latent;
  if (table.format == ExpertFormat::mxfp4) return {2 * which, 2 * which + 1, rows, cols};
  return {which, which, rows, cols};
}

size_t row_bytes(ExpertFormat format, uint32_t cols) {
  return format == ExpertFormat::mxfp4  ? cols / 2
         : format == ExpertFormat::bf16 ? size_t{cols} * 2
                                        : size_t{cols} * 4;
}

}  // namespace

size_t worker_buffer_bytes(const Weights& weights, const ExpertTable& table) {
  size_t tile = 0;
  for (uint32_t which = 0; which < 3; ++which) {
    const ExpertMatrix m = expert_matrix(weights.config, table, which);
    const size_t rows = std::min(kTileRows, m.rows);
    tile = std::max(tile, FileReader::buffer_bytes(rows * row_bytes(table.format, m.cols)) +
                              FileReader::buffer_bytes(rows * (m.cols / 32 + 1)));
  }
  return round_up(std::max({weights.block_buffer_bytes(), tile, size_t{1} << 16}), kPage);
}

bool Forward::moe(uint32_t layer) {
  const auto tensor = [&](Role role) { return weights_.role(layer, role); };
  const float* x = a_.normed;
  vector(layer, kRouterBias, c_.experts, a_.router_bias);
  if (!matmul_->multiply({{tensor(kRouter), x, c_.hidden, a_.scores, c_.experts}}, tokens_)) return false;
  pool_.run(tokens_, [&](uint32_t t, uint32_t) { route(t); });
  sort_by_expert();
  store_.begin_layer(moe_index_, uses_);

  // The trunk's part of the layer, while the experts are on their way.
  if (!matmul_->multiply({{tensor(kLatentDown), x, c_.hidden, a_.z, c_.latent}}, tokens_)) return false;
  if (c_.shared_inner > 0 &&
      !dense_mlp(tensor(kSharedGate), tensor(kSharedUp), tensor(kSharedDown), c_.shared_inner, a_.out)) {
    return false;
  }
  const bool packed = table_.format == ExpertFormat::mxfp4;
  pool_.run(tokens_, [&](uint32_t t, uint32_t worker) {
    const float* z = a_.z + size_t{t} * c_.latent;
    float* split = workers_[worker].floats;
    if (packed) kernels_.split_even_odd(z, c_.latent, split);
    for (uint32_t k = 0; k < c_.experts_per_token; ++k) {
      float* to = a_.expert_in + size_t{a_.entry[t * c_.experts_per_token + k]} * c_.latent;
      std::copy_n(packed ? split : z, c_.latent, to);
    }
  });
  std::vector<ExpertStore::Ready> ready;
  while (store_.next(&ready)) {
    compute_experts(ready);
    store_.done(ready);
  }
  store_.end_layer();
  if (step_.stopped()) return false;

  // Summed in the router's order, whatever the order in which they came.
  if (c_.latent_norm) vector(layer, kLatentNorm, c_.latent, a_.latent_norm);
  pool_.run(tokens_, [&](uint32_t t, uint32_t) {
    float* u = a_.mixed_latent + size_t{t} * c_.latent;
    for (uint32_t k = 0; k < c_.experts_per_token; ++k) {
      const size_t at = size_t{t} * c_.experts_per_token + k;
      const float* y = a_.expert_out + size_t{a_.entry[at]} * c_.latent;
      if (k == 0) {
        kernels_.scale(y, a_.share[at], c_.latent, u);
      } else {
        kernels_.axpy(a_.share[at], y, c_.latent, u);
      }
    }
    if (c_.latent_norm) kernels_.rms_norm(u, a_.latent_norm, c_.rms_norm_eps, c_.latent, u);
  });
  if (!matmul_->multiply({{tensor(kLatentUp), a_.mixed_latent, c_.latent, a_.mixed, c_.hidden}}, tokens_))
    return false;
  if (c_.shared_inner > 0) {
    kernels_.add(a_.mixed, a_.out, size_t{tokens_} * c_.hidden, a_.out);
  } else {
    std::copy_n(a_.mixed, size_t{tokens_} * c_.hidden, a_.out);
  }
  ++moe_index_;
  return true;
}

// The top experts of one token by biased score, ties to the lower index; the shares come from the unbiased
// scores.
void Forward::route(uint32_t token) {
  const uint32_t n = c_.experts, top = c_.experts_per_token;
  float* score = a_.scores + size_t{token} * n;
  kernels_.sigmoid(score, n, score);
  std::vector<uint16_t> order(n);
  std::iota(order.begin(), order.end(), uint16_t{0});
  // Damaged weights can give a NaN, which has no place in an order; the logits will tell of it.
  std::vector<float> biased(n);
  for (uint32_t e = 0; e < n; ++e) {
    biased[e] = score[e] + a_.router_bias[e];
    if (std::isnan(biased[e])) biased[e] = -std::numeric_limits<float>::infinity();
  }
  const auto before = [&](uint16_t i, uint16_t j) {
    return biased[i] != biased[j] ? biased[i] > biased[j] : i < j;
  };
  std::partial_sort(order.begin(), order.begin() + top, order.end(), before);
  float sum = 0;
  for (uint32_t k = 0; k < top; ++k) {
    a_.chosen[token * top + k] = order[k];
    sum += score[order[k]];
  }
  for (uint32_t k = 0; k < top; ++k) {
    const float s = score[order[k]];
    a_.share[token * top + k] = (c_.renormalize ? s / (sum + 1e-20f) : s) * c_.routed_scale;
  }
}

// Gives every (token, expert) pair a row, such that the rows of an expert follow each other: uses_ in
// ascending order of experts, use i owning the rows use_begin_[i] .. use_begin_[i + 1] - 1.
void Forward::sort_by_expert() {
  const uint32_t top = c_.experts_per_token, pairs = tokens_ * top;
  std::vector<uint32_t> count(c_.experts, 0);
  std::vector<float> recency(c_.experts, 0);
  for (uint32_t i = 0; i < pairs; ++i) {
    ++count[a_.chosen[i]];
    recency[a_.chosen[i]] += std::ldexp(1.0f, -static_cast<int>(std::min(tokens_ - 1 - i / top, 100u)));
  }
  uses_.clear();
  use_begin_.assign(1, 0);
  std::vector<uint32_t> next(c_.experts, 0);
  for (uint32_t e = 0; e < c_.experts; ++e) {
    if (count[e] == 0) continue;
    next[e] = use_begin_.back();
    uses_.push_back({e, recency[e], count[e]});
    use_begin_.push_back(use_begin_.back() + count[e]);
  }
  for (uint32_t i = 0; i < pairs; ++i) a_.entry[i] = next[a_.chosen[i]]++;
  if (trace_) {
    const size_t base = size_t{moe_index_} * pairs;
    std::copy_n(a_.chosen, pairs, result_->experts.begin() + static_cast<ptrdiff_t>(base));
  }
}

// All experts at hand in three sweeps: w1 and w3, the activation, w2.
void Forward::compute_experts(const std::vector<ExpertStore::Ready>& ready) {
  const uint32_t inner_tiles = (c_.moe_inner + kTileRows - 1) / kTileRows;
  const uint32_t latent_tiles = (c_.latent + kTileRows - 1) / kTileRows;
  const auto tile = [&](uint32_t expert, uint32_t which, uint32_t index, uint32_t worker) {
    if (step_.stopped()) return;
    const ExpertMatrix m = expert_matrix(c_, table_, which);
    const uint32_t first = index * kTileRows, rows = std::min(kTileRows, m.rows - first);
    const ExpertStore::Ready& r = ready[expert];
    if (r.stream) {
      stream_tile(r, which, first, rows, workers_[worker]);
    } else {
      expert_rows(r, which, first, rows, r.part[m.weights] + first * row_bytes(table_.format, m.cols),
                  r.part[m.scales] + first * (m.cols / 32));
    }
  };
  const uint32_t count = static_cast<uint32_t>(ready.size());
  pool_.run(count * 2 * inner_tiles, [&](uint32_t task, uint32_t worker) {
    const uint32_t in = task % (2 * inner_tiles);
    tile(task / (2 * inner_tiles), in < inner_tiles ? 0 : 2, in % inner_tiles, worker);
  });
  pool_.run(count, [&](uint32_t task, uint32_t worker) {
    const uint32_t use = ready[task].index;
    float* scratch = workers_[worker].floats;
    for (uint32_t e = use_begin_[use]; e < use_begin_[use + 1]; ++e) {
      float* h = a_.expert_gate + size_t{e} * c_.moe_inner;
      kernels_.situ_glu(h, a_.expert_up + size_t{e} * c_.moe_inner, c_.situ_beta, c_.situ_linear_beta,
                        c_.moe_inner, h);
      if (table_.format != ExpertFormat::mxfp4) continue;
      kernels_.split_even_odd(h, c_.moe_inner, scratch);
      std::copy_n(scratch, c_.moe_inner, h);
    }
  });
  pool_.run(count * latent_tiles, [&](uint32_t task, uint32_t worker) {
    tile(task / latent_tiles, 1, task % latent_tiles, worker);
  });
}

void Forward::expert_rows(const ExpertStore::Ready& ready, uint32_t which, uint32_t first_row, uint32_t rows,
                          const uint8_t* weights, const uint8_t* scales) {
  const ExpertMatrix m = expert_matrix(c_, table_, which);
  const uint32_t begin = use_begin_[ready.index], tokens = use_begin_[ready.index + 1] - begin;
  const float* x = (which == 1 ? a_.expert_gate : a_.expert_in) + size_t{begin} * m.cols;
  float* y = (which == 0   ? a_.expert_gate
              : which == 1 ? a_.expert_out
                           : a_.expert_up) +
             size_t{begin} * m.rows + first_row;
  switch (table_.format) {
    case ExpertFormat::mxfp4:
      kernels_.matmul_mxfp4(weights, scales, rows, m.cols, x, m.cols, tokens, y, m.rows);
      break;
    case ExpertFormat::bf16:
      kernels_.matmul_bf16(reinterpret_cast<const uint16_t*>(weights), rows, m.cols, x, m.cols, tokens, y,
                           m.rows);
      break;
    case ExpertFormat::f32:
      kernels_.matmul_f32(reinterpret_cast<const float*>(weights), rows, m.cols, x, m.cols, tokens, y,
                          m.rows);
      break;
  }
}

// Reads the rows of a tile into the worker's own buffer and multiplies them while they are in its cache.
void Forward::stream_tile(const ExpertStore::Ready& ready, uint32_t which, uint32_t first_row, uint32_t rows,
                          Worker& worker) {
  const ExpertMatrix m = expert_matrix(c_, table_, which);
  const uint32_t expert = uses_[ready.index].expert;
  const auto fetch = [&](uint32_t part, size_t bytes_per_row, uint8_t* buffer) {
    const size_t i = table_.index(moe_index_, expert, part);
    const uint64_t offset = static_cast<uint64_t>(table_.offsets[i]) + first_row * bytes_per_row;
    const size_t bytes = rows * bytes_per_row;
    const uint8_t* data = files_.read(table_.files[i], offset, bytes, buffer, step_);
    if (data) step_.counters.expert_bytes.fetch_add(bytes, std::memory_order_relaxed);
    return data;
  };
  const size_t bytes = row_bytes(table_.format, m.cols);
  const uint8_t* weights = fetch(m.weights, bytes, worker.buffer);
  if (!weights) return;
  const uint8_t* scales = weights;
  if (table_.format == ExpertFormat::mxfp4) {
    scales = fetch(m.scales, m.cols / 32, worker.buffer + FileReader::buffer_bytes(rows * bytes));
    if (!scales) return;
  }
  expert_rows(ready, which, first_row, rows, weights, scales);
}

}  // namespace k3
