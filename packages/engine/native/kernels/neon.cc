// NEON: 4 floats to a vector, 8 vectors to the 32 lanes.
#include "vector_neon.h"
// Order matters: each of these uses what the ones before it define.
#include "elementary.h"
#include "elementwise.h"
#include "lanes.h"
#include "layers.h"
#include "mxfp4.h"
#include "tables.h"

namespace k3 {
namespace {

// Of the 32 registers sums take 16, 16 and 24. Chosen by that count: no machine with NEON was there to
// measure on.
constexpr size_t kStreamRows = 2;
constexpr size_t kShareRows = 1;
constexpr size_t kShareTokens = 2;
constexpr size_t kFewTokens = 4;
constexpr size_t kTileRows = 6;
constexpr size_t kTileTokens = 4;

template <class Vector>
inline Vector load_as(const void* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// A bf16 is the upper half of a float32: the even columns are shifted up, the odd ones masked.
inline void unpack_pairs(const unsigned char* p, F (&w)[kParts]) {
  for (size_t i = 0; i < 4; i++) {
    const auto both = load_as<uint32x4_t>(p + 16 * i);
    w[i] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
    w[4 + i] = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
  }
}

// Lanes 2j are in w[0] to w[3]; lanes 2j + 1 in w[4] to w[7]. Halving by 16, 8, 4 and 2 stays within each
// kind.
inline float sum_pairs(const F (&w)[kParts]) {
  return sum_of_16(w[0], w[1], w[2], w[3]) + sum_of_16(w[4], w[5], w[6], w[7]);
}

// The 16 values by scale, one byte of each in `third` and one in `fourth`: only the upper half of a float32
// is ever set, subnormals included. A byte shuffle looks 16 nibbles up at once.
struct ValueTable {
  struct Bytes {
    alignas(16) uint8_t third[16];
    alignas(16) uint8_t fourth[16];
  } by_scale[256];
};

constexpr ValueTable value_table() {
  ValueTable table = {};
  for (uint32_t scale = 0; scale < 256; scale++) {
    for (uint32_t nibble = 0; nibble < 16; nibble++) {
      const uint32_t bits = mxfp4_bits(nibble & 7, scale) | (nibble & 8) << 28;
      table.by_scale[scale].third[nibble] = static_cast<uint8_t>(bits >> 16);
      table.by_scale[scale].fourth[nibble] = static_cast<uint8_t>(bits >> 24);
    }
  }
  return table;
}

constexpr ValueTable kValues = value_table();

inline void mxfp4_values(uint8x16_t nibble, uint8x16_t third, uint8x16_t fourth, F* w) {
  const uint8x16_t low = vqtbl1q_u8(third, nibble);
  const uint8x16_t high = vqtbl1q_u8(fourth, nibble);
  const uint16x8_t first = vreinterpretq_u16_u8(vzip1q_u8(low, high));
  const uint16x8_t second = vreinterpretq_u16_u8(vzip2q_u8(low, high));
  const uint16x8_t zero = vdupq_n_u16(0);
  w[0] = vreinterpretq_f32_u16(vzip1q_u16(zero, first));
  w[1] = vreinterpretq_f32_u16(vzip2q_u16(zero, first));
  w[2] = vreinterpretq_f32_u16(vzip1q_u16(zero, second));
  w[3] = vreinterpretq_f32_u16(vzip2q_u16(zero, second));
}

inline void unpack_mxfp4(const uint8_t* bytes, uint8_t scale, F (&w)[kParts]) {
  const auto third = load_as<uint8x16_t>(kValues.by_scale[scale].third);
  const auto fourth = load_as<uint8x16_t>(kValues.by_scale[scale].fourth);
  const auto both = load_as<uint8x16_t>(bytes);
  mxfp4_values(vandq_u8(both, vdupq_n_u8(15)), third, fourth, w);
  mxfp4_values(vshrq_n_u8(both, 4), third, fourth, w + 4);
}

inline void split_group(const float* x, float* out) {
  F all[kParts];  // out may be x: all is read before any is written
  for (size_t i = 0; i < kParts; i++) all[i] = load(x + i * kWidth);
  for (size_t i = 0; i < 4; i++) {
    store(out + i * kWidth, vuzp1q_f32(all[2 * i], all[2 * i + 1]));
    store(out + (4 + i) * kWidth, vuzp2q_f32(all[2 * i], all[2 * i + 1]));
  }
}

inline void store_interleaved(const F (&w)[kParts], float* out) {
  for (size_t i = 0; i < 4; i++) {
    store(out + 2 * i * kWidth, vzip1q_f32(w[i], w[4 + i]));
    store(out + (2 * i + 1) * kWidth, vzip2q_f32(w[i], w[4 + i]));
  }
}

}  // namespace
}  // namespace k3

#include "matmul.h"
// After everything that it names.
#include "table.h"

namespace k3 {

const Kernels* neon_kernels() {
  static constexpr Kernels table = table_named("neon");
  return &table;
}

}  // namespace k3
