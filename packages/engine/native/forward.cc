#include "forward.h"

#include <algorithm>
#include <cstring>

namespace k3 {

Error Forward::allocate(uint32_t tokens) {
  Activations measure;
  const size_t bytes = measure.carve(nullptr, weights_, tokens);
  const size_t buffer = worker_buffer_bytes(weights_, table_), tile = TrunkMatmul::tile_bytes(weights_);
  const size_t floats = worker_floats(c_) * sizeof(float);
  const size_t per_worker = buffer + round_up(tile, kPage) + round_up(floats, kPage);
  if (!area_.allocate(bytes) || !worker_area_.allocate(per_worker * pool_.threads())) {
    return {"E_MEMORY", "the system refused memory for the activations", "give a smaller memory budget"};
  }
  a_.carve(area_.data(), weights_, tokens);
  for (uint32_t w = 0; w < pool_.threads(); ++w) {
    uint8_t* base = worker_area_.data() + w * per_worker;
    workers_.push_back(
        {base, base + buffer, reinterpret_cast<float*>(base + buffer + round_up(tile, kPage))});
  }
  matmul_ =
      std::make_unique<TrunkMatmul>(weights_, files_, stream_, pool_, step_, kernels_, workers_, a_.kept);
  return {};
}

Error Forward::run(std::span<const int32_t> ids, SessionState& state, const PassOptions& options,
                   PassResult* result) {
  tokens_ = static_cast<uint32_t>(ids.size());
  snapshots_ = 0;
  moe_index_ = 0;
  result_ = result;
  trace_ = options.trace;
  result->logits.clear();
  result->experts.assign(trace_ ? size_t{c_.moe_layers()} * tokens_ * c_.experts_per_token : 0, 0);
  result->layer_max.assign(trace_ ? c_.layers : 0, 0);
  const Counters& counters = step_.counters;
  const uint64_t trunk_before = counters.trunk_bytes + counters.head_bytes,
                 experts_before = counters.expert_bytes;

  stream_.begin_pass(options.last_logits || options.all_logits);
  store_.begin_pass(tokens_);
  state.broken = true;
  bool good = embed(ids);
  for (uint32_t l = 0; good && l < c_.layers; ++l) {
    step_.counters.layer.store(l, std::memory_order_relaxed);
    good = layer(l, state);
  }
  step_.counters.layer.store(c_.layers, std::memory_order_relaxed);
  good = good && logits(options, result);
  store_.end_pass(good);
  stream_.end_pass();
  if (!good) {
    const Error error = step_.error();
    return error ? error : Error{"E_DEFECT", "the pass stopped without a reason", ""};
  }
  if (Error changed = files_.changed()) return changed;
  const uint64_t trunk = counters.trunk_bytes + counters.head_bytes - trunk_before;
  const uint64_t experts = counters.expert_bytes - experts_before;
  if (trunk != stream_.owed() || experts != store_.owed()) {
    return {"E_DEFECT",
            "bytes read differ from bytes owed: trunk " + std::to_string(trunk) + " of " +
                std::to_string(stream_.owed()) + ", experts " + std::to_string(experts) + " of " +
                std::to_string(store_.owed()),
            ""};
  }
  state.position += tokens_;
  state.broken = false;
  return {};
}

bool Forward::embed(std::span<const int32_t> ids) {
  const size_t row = size_t{c_.hidden} * dtype_bytes(embedding_.dtype);
  pool_.run(tokens_, [&](uint32_t t, uint32_t worker) {
    if (step_.stopped()) return;
    // In pieces that fit: a row may be larger than the blocks of a tiny model.
    uint8_t* buffer = workers_[worker].buffer;
    const size_t fits = worker_buffer_bytes(weights_, table_) - 2 * kPage;
    for (size_t at = 0; at < row; at += fits) {
      const size_t bytes = std::min(fits, row - at);
      const uint8_t* data =
          files_.read(embedding_.file, embedding_.offset + static_cast<uint64_t>(ids[t]) * row + at, bytes,
                      buffer, step_);
      if (!data) return;
      float* to = a_.prefix + size_t{t} * c_.hidden + at / dtype_bytes(embedding_.dtype);
      if (embedding_.dtype == Dtype::bf16) {
        kernels_.widen_bf16(reinterpret_cast<const uint16_t*>(data), bytes / 2, to);
      } else {
        std::memcpy(to, data, bytes);
      }
    }
    step_.counters.embed_bytes.fetch_add(row, std::memory_order_relaxed);
  });
  return !step_.stopped();
}

bool Forward::layer(uint32_t layer, SessionState& state) {
  if (!matmul_->keep_layer(layer)) return false;
  const size_t size = size_t{tokens_} * c_.hidden;

  // A block closes: what ran through it so far is kept as it is, and the sum begins anew with this layer's
  // attention.
  const float* x = a_.prefix;
  if (snapshots_ > 0) {
    mix(layer, kAttnResNorm, kAttnResProj, a_.mixed);
    x = a_.mixed;
  }
  const bool closes = layer % c_.attn_res_block_size == 0;
  if (closes) {
    std::memcpy(a_.blocks + snapshots_ * size, a_.prefix, size * sizeof(float));
    ++snapshots_;
  }
  vector(layer, kInputNorm, c_.hidden, a_.norm);
  rms_norm_rows(x, a_.norm, c_.rms_norm_eps, c_.hidden, a_.normed);
  if (!(c_.is_mla[layer] ? mla(layer, state) : kda(layer, state))) return false;
  if (closes) {
    std::memcpy(a_.prefix, a_.out, size * sizeof(float));
  } else {
    kernels_.add(a_.prefix, a_.out, size, a_.prefix);
  }

  mix(layer, kMlpResNorm, kMlpResProj, a_.mixed);
  vector(layer, kPostNorm, c_.hidden, a_.norm);
  rms_norm_rows(a_.mixed, a_.norm, c_.rms_norm_eps, c_.hidden, a_.normed);
  const auto tensor = [&](Role role) { return weights_.role(layer, role); };
  if (!(c_.is_moe[layer] ? moe(layer)
                         : dense_mlp(tensor(kGate), tensor(kUp), tensor(kDown), c_.intermediate, a_.out))) {
    return false;
  }
  kernels_.add(a_.prefix, a_.out, size, a_.prefix);
  if (trace_) result_->layer_max[layer] = kernels_.max_abs(a_.prefix, size);
  return true;
}

bool Forward::logits(const PassOptions& options, PassResult* result) {
  if (!matmul_->keep_layer(c_.layers)) return false;
  if (!options.last_logits && !options.all_logits) return true;
  mix(c_.layers, kOutResNorm, kOutResProj, a_.mixed);
  vector(c_.layers, kFinalNorm, c_.hidden, a_.norm);
  rms_norm_rows(a_.mixed, a_.norm, c_.rms_norm_eps, c_.hidden, a_.normed);
  const uint32_t rows = options.all_logits ? tokens_ : 1;
  result->logits.resize(size_t{rows} * c_.vocab);
  const float* x = a_.normed + size_t{tokens_ - rows} * c_.hidden;
  return matmul_->multiply({{weights_.role(c_.layers, kHead), x, c_.hidden, result->logits.data(), c_.vocab}},
                           rows);
}

void Forward::rms_norm_rows(const float* x, const float* weight, float eps, uint32_t width, float* out) {
  pool_.run(tokens_, [&](uint32_t t, uint32_t) {
    kernels_.rms_norm(x + size_t{t} * width, weight, eps, width, out + size_t{t} * width);
  });
}

}  // namespace k3
