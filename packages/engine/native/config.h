// What a checkpoint's config.json says about the model, as numbers. TypeScript has checked every field
// already.
#pragma once

#include <cstdint>
#include <vector>

namespace k3 {

struct Config {
  uint32_t hidden = 0;
  uint32_t layers = 0;
  uint32_t vocab = 0;
  float rms_norm_eps = 0;
  uint32_t attn_res_block_size = 0;
  float situ_beta = 0;
  float situ_linear_beta = 0;
  uint32_t intermediate = 0;
  uint32_t experts = 0;
  uint32_t experts_per_token = 0;
  uint32_t shared_inner =
      0;  // shared experts, fused: their number times the inner width; 0 when there are none
  uint32_t moe_inner = 0;
  uint32_t latent = 0;  // width of the routed experts' input and output
  bool latent_norm = false;
  bool renormalize = false;
  float routed_scale = 1;

  struct Mla {
    uint32_t heads = 0, q_lora = 0, kv_lora = 0, nope = 0, rope = 0, v_dim = 0;
    bool gate = false;
    uint32_t query() const { return nope + rope; }
    uint32_t latent() const { return kv_lora + rope; }  // floats that the cache keeps per position and layer
  } mla;

  struct Kda {
    uint32_t heads = 0, dim = 0, conv = 0;
    float gate_lower_bound = 0;
    uint32_t width() const { return heads * dim; }
  } kda;

  std::vector<uint8_t> is_mla;  // per layer
  std::vector<uint8_t> is_moe;  // per layer

  uint32_t snapshots() const { return (layers + attn_res_block_size - 1) / attn_res_block_size; }
  uint32_t mla_layers() const { return count(is_mla, 1); }
  uint32_t kda_layers() const { return count(is_mla, 0); }
  uint32_t moe_layers() const { return count(is_moe, 1); }

 private:
  static uint32_t count(const std::vector<uint8_t>& flags, uint8_t value) {
    uint32_t n = 0;
    for (uint8_t flag : flags) n += (flag != 0) == (value != 0);
    return n;
  }
};

// The two norms inside MLA keep the class default of the first-party code; every other norm follows
// rms_norm_eps.
inline constexpr float kMlaNormEps = 1e-6f;
// Added to the sum of squares when queries and keys of KDA are brought to unit length.
inline constexpr float kUnitEps = 1e-6f;
// Keys per step of the softmax over the latent cache. Fixed, counted from position 0: part of what the bits
// depend on.
inline constexpr uint32_t kKeyTile = 64;

}  // namespace k3
