#include "session_state.h"

#include <algorithm>
#include <cstring>

namespace k3 {

namespace {
size_t matrix_floats(const Config& c) {
  return size_t{c.kda.heads} * c.kda.dim * c.kda.dim;
}
size_t taps_floats(const Config& c) {
  return size_t{3} * (c.kda.conv - 1) * c.kda.width();
}
}  // namespace

uint64_t SessionState::fixed_bytes(const Config& config) {
  return uint64_t{config.kda_layers()} * (matrix_floats(config) + taps_floats(config)) * sizeof(float);
}

uint64_t SessionState::position_bytes(const Config& config) {
  return uint64_t{config.mla_layers()} * config.mla.latent() * sizeof(float);
}

bool SessionState::allocate(const Config& config, uint32_t positions) {
  matrix_ = matrix_floats(config);
  taps_ = taps_floats(config);
  kda_layers_ = config.kda_layers();
  mla_layers_ = config.mla_layers();
  latent_ = config.mla.latent();
  latent_layer_ = size_t{positions} * latent_;
  capacity = positions;
  return fixed_.allocate(fixed_bytes(config)) &&
         latents_.allocate(uint64_t{positions} * position_bytes(config), Area::Pages::small);
}

bool SessionState::copy_from(const SessionState& other) {
  if (other.kda_layers_ != kda_layers_ || other.matrix_ != matrix_ || other.taps_ != taps_ ||
      other.mla_layers_ != mla_layers_ || other.latent_ != latent_ || other.position > capacity) {
    return false;
  }
  if (fixed_.size()) std::memcpy(fixed_.data(), other.fixed_.data(), fixed_.size());
  for (uint32_t layer = 0; layer < mla_layers_; ++layer) {
    std::memcpy(latents(layer), other.latents(layer), size_t{other.position} * latent_ * sizeof(float));
  }
  position = other.position;
  broken = other.broken;
  return true;
}

void SessionState::clear() {
  if (fixed_.size()) std::memset(fixed_.data(), 0, fixed_.size());
  position = 0;
  broken = false;
}

uint64_t SessionState::serialized_bytes() const {
  return fixed_.size() + uint64_t{mla_layers_} * position * latent_ * sizeof(float);
}

// The run of bytes is the fixed part, then every MLA layer's latents one after the other.
template <typename F>
bool SessionState::each_span(uint64_t offset, uint64_t bytes, F&& f) const {
  const uint64_t total = serialized_bytes();
  if (offset > total || bytes > total - offset) return false;
  const uint64_t layer_bytes = uint64_t{position} * latent_ * sizeof(float);
  while (bytes > 0) {
    uint8_t* at;
    uint64_t left;
    if (offset < fixed_.size()) {
      at = fixed_.data() + offset;
      left = fixed_.size() - offset;
    } else {
      const uint64_t in = offset - fixed_.size();
      at = reinterpret_cast<uint8_t*>(latents(static_cast<uint32_t>(in / layer_bytes))) + in % layer_bytes;
      left = layer_bytes - in % layer_bytes;
    }
    const uint64_t n = std::min(left, bytes);
    f(at, n);
    offset += n;
    bytes -= n;
  }
  return true;
}

bool SessionState::serialize(uint64_t offset, uint64_t bytes, uint8_t* out) const {
  return each_span(offset, bytes, [&](const uint8_t* at, uint64_t n) { std::memcpy(out, at, n), out += n; });
}

bool SessionState::deserialize(uint64_t offset, uint64_t bytes, const uint8_t* in) {
  return each_span(offset, bytes, [&](uint8_t* at, uint64_t n) { std::memcpy(at, in, n), in += n; });
}

}  // namespace k3
