// AVX-512 (F, BW, VL, DQ): 16 floats to a vector, 2 vectors to the 32 lanes.
#include "vector_avx512.h"
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
constexpr size_t kShareRows = 2;
constexpr size_t kShareTokens = 4;
constexpr size_t kFewTokens = 16;
constexpr size_t kTileRows = 6;
constexpr size_t kTileTokens = 4;

// A bf16 is the upper half of a float32: the even columns are shifted up, the odd ones masked.
inline void unpack_pairs(const unsigned char* p, F (&w)[kParts]) {
  const __m512i both = _mm512_loadu_si512(p);
  w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  w[1] = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Lanes 2j are in w[0], lanes 2j + 1 in w[1]. Halving by 16, 8, 4 and 2 stays within each.
inline float sum_pairs(const F (&w)[kParts]) {
  return sum_of_4(fold_8(fold_16(w[0]))) + sum_of_4(fold_8(fold_16(w[1])));
}

// The 16 values by scale, ready for one permutation. A checkpoint uses a dozen of the scales: they stay in
// L1.
struct ValueTable {
  alignas(64) uint32_t bits[256][16];
};

constexpr ValueTable value_table() {
  ValueTable table = {};
  for (uint32_t scale = 0; scale < 256; scale++)
    for (uint32_t nibble = 0; nibble < 16; nibble++)
      table.bits[scale][nibble] = mxfp4_bits(nibble & 7, scale) | (nibble & 8) << 28;
  return table;
}

constexpr ValueTable kValues = value_table();

// The permutation looks at the low 4 bits of an index only: the low nibble needs no mask.
inline void unpack_mxfp4(const uint8_t* bytes, uint8_t scale, F (&w)[kParts]) {
  const __m512 values = _mm512_load_ps(kValues.bits[scale]);
  const __m512i low = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  w[0] = _mm512_permutexvar_ps(low, values);
  w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(low, 4), values);
}

inline void split_group(const float* x, float* out) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512 x0 = load(x), x1 = load(x + 16);
  store(out, _mm512_permutex2var_ps(x0, even, x1));
  store(out + 16, _mm512_permutex2var_ps(x0, odd, x1));
}

inline void store_interleaved(const F (&w)[kParts], float* out) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  store(out, _mm512_permutex2var_ps(w[0], first, w[1]));
  store(out + 16, _mm512_permutex2var_ps(w[0], second, w[1]));
}

}  // namespace
}  // namespace k3

#include "matmul.h"
// After everything that it names.
#include "table.h"

namespace k3 {

const Kernels* avx512_kernels() {
  static constexpr Kernels table = table_named("avx512");
  return &table;
}

}  // namespace k3
