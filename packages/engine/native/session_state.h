// What a sequence of tokens leaves behind: the KDA matrices, the taps of the short convolutions, the latent
// cache.
#pragma once

#include <cstdint>
#include <vector>

#include "config.h"
#include "memory.h"

namespace k3 {

class SessionState {
 public:
  // Room for `capacity` positions; what is not used yet costs no memory.
  bool allocate(const Config& config, uint32_t capacity);
  bool copy_from(const SessionState& other);

  uint32_t position = 0;
  uint32_t capacity = 0;
  // A pass stopped between its first and last write: the state belongs to no position any more.
  bool broken = false;

  // [heads][dim (key)][dim (value)] of one KDA layer (counted among the KDA layers).
  float* kda(uint32_t kda_layer) const { return fixed_.floats() + kda_layer * (matrix_ + taps_); }
  // [heads][q, k, v][conv - 1][dim], oldest first: the values before the convolution.
  float* taps(uint32_t kda_layer) const { return kda(kda_layer) + matrix_; }
  // [capacity][kv_lora + rope] of one MLA layer (counted among the MLA layers).
  float* latents(uint32_t mla_layer) const { return latents_.floats() + mla_layer * latent_layer_; }

  static uint64_t fixed_bytes(const Config& config);
  static uint64_t position_bytes(const Config& config);

  // The state as one run of bytes, latents only up to the position: for files.
  uint64_t serialized_bytes() const;
  // Copies `bytes` of it from `offset` on; false when that is out of range.
  bool serialize(uint64_t offset, uint64_t bytes, uint8_t* out) const;
  bool deserialize(uint64_t offset, uint64_t bytes, const uint8_t* in);
  void clear();

 private:
  template <typename F>
  bool each_span(uint64_t offset, uint64_t bytes, F&& f) const;

  Area fixed_, latents_;
  size_t matrix_ = 0, taps_ = 0, latent_layer_ = 0;  // floats per layer
  uint32_t kda_layers_ = 0, mla_layers_ = 0, latent_ = 0;
};

}  // namespace k3
