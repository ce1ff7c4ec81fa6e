// The forward pass over a chunk of tokens, layer by layer. Each part of the model has a file of its own that
// defines its member functions: attention_residual.cc, kda.cc, mla.cc, dense_mlp.cc, moe.cc; forward.cc puts
// them together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "expert_store.h"
#include "session_state.h"
#include "trunk_matmul.h"

namespace k3 {

// Where the embedding's rows are: read one by one, as tokens need them.
struct Embedding {
  uint32_t file = 0;
  uint64_t offset = 0;
  Dtype dtype = Dtype::bf16;
};

// The activations of a chunk, and the vectors of the layer at work. All in float32, row-major, a row per
// token.
struct Activations {
  // Alive through the whole pass.
  float *prefix, *blocks, *mixed, *normed, *out;
  // Vectors of the layer at work.
  float *fold, *norm, *taps, *rate, *dt_bias, *o_norm, *q_norm, *kv_norm, *router_bias, *latent_norm;
  // Attention.
  float *q, *k, *v, *gate, *decay, *f_a, *beta, *attended, *q_lora, *latent;
  uint8_t* kv_b;
  // Feed-forward.
  float *hidden_gate, *hidden_up, *scores, *z, *expert_in, *expert_gate, *expert_up, *expert_out,
      *mixed_latent;
  uint16_t* chosen;  // [tokens][top_k]
  float* share;      // [tokens][top_k]
  uint32_t* entry;   // [tokens][top_k]: row of expert_in and expert_out
  // The layer's kept blocks.
  uint8_t* kept;

  // Lays everything out; with a null base it only measures. Returns the bytes needed.
  size_t carve(uint8_t* base, const Weights& weights, uint32_t tokens);
};

// What a worker needs beside the block buffer, in floats.
size_t worker_floats(const Config& config);
// The bytes that a worker's buffer must hold: any block, and a tile of an expert.
size_t worker_buffer_bytes(const Weights& weights, const ExpertTable& experts);

struct PassOptions {
  bool last_logits = false;  // of the last token
  bool all_logits = false;   // of every token
  bool trace = false;        // record the experts chosen and the largest value after each layer
};

struct PassResult {
  std::vector<float> logits;      // [1 or tokens][vocab]
  std::vector<uint16_t> experts;  // [moe layers][tokens][top_k], descending biased score
  std::vector<float> layer_max;   // [layers]: largest |prefix| over the tokens of this pass
};

class Forward {
 public:
  Forward(const Weights& weights, const ExpertTable& experts, const Embedding& embedding, FileReader& files,
          BlockStream& stream, ExpertStore& store, ThreadPool& pool, Step& step, const Kernels& kernels)
      : weights_(weights),
        c_(weights.config),
        table_(experts),
        embedding_(embedding),
        files_(files),
        stream_(stream),
        store_(store),
        pool_(pool),
        step_(step),
        kernels_(kernels) {}

  // Memory for chunks of at most `tokens`.
  Error allocate(uint32_t tokens);

  // Runs ids through the model and advances the state. When the step stops before the end, the state is
  // broken.
  Error run(std::span<const int32_t> ids, SessionState& state, const PassOptions& options,
            PassResult* result);

 private:
  bool embed(std::span<const int32_t> ids);
  bool layer(uint32_t layer, SessionState& state);
  bool logits(const PassOptions& options, PassResult* result);

  // attention_residual.cc
  void mix(uint32_t level, Role norm, Role proj, float* out);
  // kda.cc
  bool kda(uint32_t layer, SessionState& state);
  void kda_head(uint32_t head, float* matrix, float* taps, float* scratch);
  // mla.cc
  bool mla(uint32_t layer, SessionState& state);
  void mla_heads(uint32_t token, uint32_t head, uint32_t heads, uint32_t position, Dtype dtype,
                 const float* latents, float* scratch);
  // dense_mlp.cc
  bool dense_mlp(uint32_t gate, uint32_t up, uint32_t down, uint32_t width, float* out);
  // moe.cc
  bool moe(uint32_t layer);
  void route(uint32_t token);
  void sort_by_expert();
  void compute_experts(const std::vector<ExpertStore::Ready>& ready);
  void expert_rows(const ExpertStore::Ready& ready, uint32_t matrix, uint32_t first_row, uint32_t rows,
                   const uint8_t* weights, const uint8_t* scales);
  void stream_tile(const ExpertStore::Ready& ready, uint32_t matrix, uint32_t first_row, uint32_t rows,
                   Worker& worker);

  // Norms and elementwise work, a task per token.
  void rms_norm_rows(const float* x, const float* weight, float eps, uint32_t width, float* out);
  void vector(uint32_t level, Role role, size_t count, float* out) {
    matmul_->vector(weights_.role(level, role), count, out);
  }

  const Weights& weights_;
  const Config& c_;
  const ExpertTable& table_;
  const Embedding& embedding_;
  FileReader& files_;
  BlockStream& stream_;
  ExpertStore& store_;
  ThreadPool& pool_;
  Step& step_;
  const Kernels& kernels_;

  Area area_, worker_area_;
  Activations a_{};
  std::vector<Worker> workers_;
  std::unique_ptr<TrunkMatmul> matmul_;
  uint32_t tokens_ = 0;     // of the chunk at work
  uint32_t snapshots_ = 0;  // blocks of the attention residual that are closed
  uint32_t moe_index_ = 0;  // layers with experts before this one
  PassResult* result_ = nullptr;
  bool trace_ = false;
  std::vector<ExpertUse> uses_;
  std::vector<uint32_t> use_begin_;  // per use: its first entry; one more at the end
};

}  // namespace k3
