// AVX2 with FMA: 8 floats to a vector, 4 vectors to the 32 lanes.
#include "vector_avx2.h"
// Order matters: each of these uses what the ones before it define.
#include "elementary.h"
#include "elementwise.h"
#include "lanes.h"
#include "layers.h"
#include "mxfp4.h"
#include "tables.h"

namespace k3 {
namespace {

constexpr size_t kStreamRows = 4;
constexpr size_t kShareRows = 1;
constexpr size_t kShareTokens = 2;
constexpr size_t kFewTokens = 4;
constexpr size_t kTileRows = 3;
constexpr size_t kTileTokens = 4;

inline __m256i load_bytes(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// A bf16 is the upper half of a float32: the even columns are shifted up, the odd ones masked.
inline void unpack_pairs(const unsigned char* p, F (&w)[kParts]) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i first = load_bytes(p);
  const __m256i second = load_bytes(p + 32);
  w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(first, 16));
  w[1] = _mm256_castsi256_ps(_mm256_slli_epi32(second, 16));
  w[2] = _mm256_castsi256_ps(_mm256_and_si256(first, upper));
  w[3] = _mm256_castsi256_ps(_mm256_and_si256(second, upper));
}

// Lanes 2j are in w[0], w[1]; lanes 2j + 1 in w[2], w[3]. Halving by 16, 8, 4 and 2 stays within each kind.
inline float sum_pairs(const F (&w)[kParts]) {
  return sum_of_4(fold_8(w[0] + w[1])) + sum_of_4(fold_8(w[2] + w[3]));
}

// Magnitudes by scale, each xor-ed with its own code in bits 28 to 30: xor with (nibble << 28) then takes the
// code out and puts the sign in, without masking.
struct MagnitudeTable {
  alignas(32) uint32_t bits[256][8];
};

constexpr MagnitudeTable magnitude_table() {
  MagnitudeTable table = {};
  for (uint32_t scale = 0; scale < 256; scale++)
    for (uint32_t code = 0; code < 8; code++) table.bits[scale][code] = mxfp4_bits(code, scale) ^ code << 28;
  return table;
}

constexpr MagnitudeTable kMagnitudes = magnitude_table();

inline F mxfp4_values(__m256i nibble, __m256 magnitudes) {  // bits 4 and up of nibble are ignored
  return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, nibble),
                       _mm256_castsi256_ps(_mm256_slli_epi32(nibble, 28)));
}

inline void unpack_mxfp4(const uint8_t* bytes, uint8_t scale, F (&w)[kParts]) {
  const __m256 magnitudes = _mm256_load_ps(reinterpret_cast<const float*>(kMagnitudes.bits[scale]));
  for (size_t half = 0; half < 2; half++) {
    const __m256i low =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + 8 * half)));
    w[half] = mxfp4_values(low, magnitudes);
    w[2 + half] = mxfp4_values(_mm256_srli_epi32(low, 4), magnitudes);
  }
}

inline void split_group(const float* x, float* out) {
  const __m256 x0 = load(x), x1 = load(x + 8), x2 = load(x + 16), x3 = load(x + 24);
  // 0 2 8 10 | 4 6 12 14 and the like; the quarters then go to their places.
  const auto in_order = [](__m256 v) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), _MM_SHUFFLE(3, 1, 2, 0)));
  };
  store(out, in_order(_mm256_shuffle_ps(x0, x1, _MM_SHUFFLE(2, 0, 2, 0))));
  store(out + 8, in_order(_mm256_shuffle_ps(x2, x3, _MM_SHUFFLE(2, 0, 2, 0))));
  store(out + 16, in_order(_mm256_shuffle_ps(x0, x1, _MM_SHUFFLE(3, 1, 3, 1))));
  store(out + 24, in_order(_mm256_shuffle_ps(x2, x3, _MM_SHUFFLE(3, 1, 3, 1))));
}

inline void store_interleaved(const F (&w)[kParts], float* out) {
  for (size_t half = 0; half < 2; half++) {
    const __m256 low = _mm256_unpacklo_ps(w[half], w[2 + half]);
    const __m256 high = _mm256_unpackhi_ps(w[half], w[2 + half]);
    store(out + 16 * half, _mm256_permute2f128_ps(low, high, 0x20));
    store(out + 16 * half + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
}

}  // namespace
}  // namespace k3

#include "matmul.h"
// After everything that it names.
#include "table.h"

namespace k3 {

const Kernels* avx2_kernels() {
  static constexpr Kernels table = table_named("avx2");
  return &table;
}

}  // namespace k3
