// The decoding kernel for AVX-512 with VBMI2: 64 values a step; the expand instruction puts the other
// exponents into their places.
#include <immintrin.h>

#include "codec_format.h"

namespace k3::codec {
namespace {

struct Step {
  __m512i exponents;
  size_t taken;
};

inline Step expand_step(const uint8_t* codes, __m512i dictionary, const uint8_t* others) {
  const __m512i shifts = _mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0);
  const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m512i code = _mm512_and_si512(_mm512_srlv_epi32(all, shifts), _mm512_set1_epi8(3));
  const __mmask64 mask = _mm512_cmpeq_epi8_mask(code, _mm512_set1_epi8(kOther));
  const __m512i known = _mm512_shuffle_epi8(dictionary, code);
  return {_mm512_mask_expand_epi8(known, mask, _mm512_loadu_si512(others)),
          static_cast<size_t>(_mm_popcnt_u64(mask))};
}

inline __m512i load_dictionary(const uint8_t entry[4]) {
  return _mm512_set1_epi32(
      static_cast<int>(uint32_t{entry[0]} | uint32_t{entry[1]} << 8 | uint32_t{entry[2]} << 16));
}

size_t expand(const uint8_t* codes, size_t values, const uint8_t entry[4], const uint8_t* others,
              uint8_t* out) {
  const __m512i dictionary = load_dictionary(entry);
  size_t taken = 0;
  for (size_t i = 0; i < values; i += kGroupValues, codes += kGroupCodeBytes) {
    const Step step = expand_step(codes, dictionary, others + taken);
    taken += step.taken;
    _mm512_storeu_si512(out + i, step.exponents);
  }
  return taken;
}

}  // namespace
}  // namespace k3::codec

#include "decode_tail.h"

namespace k3::codec {

bool decode_chunk_avx512(const Chunk& chunk, Scratch* scratch, uint16_t* out) {
  const bool sound = expand_tail(chunk, scratch);
  const uint8_t* second = scratch->level[0].bytes;
  const __m512i dictionary = load_dictionary(chunk.dictionary[0]);
  // The order of runs of eight from which unpacklo and unpackhi give 32 consecutive values each.
  const __m512i runs = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  const uint8_t* codes = chunk.codes[0];
  size_t taken = 0;
  for (size_t i = 0; i < chunk.values; i += kGroupValues, codes += kGroupCodeBytes) {
    const Step step = expand_step(codes, dictionary, second + taken);
    taken += step.taken;
    const __m512i exponents = _mm512_permutexvar_epi64(runs, step.exponents);
    const __m512i sm = _mm512_permutexvar_epi64(runs, _mm512_loadu_si512(chunk.sign_mantissa + i));
    const __m512i low = _mm512_unpacklo_epi8(sm, exponents);
    const __m512i high = _mm512_unpackhi_epi8(sm, exponents);
    _mm512_storeu_si512(out + i, _mm512_shldi_epi16(low, low, 15));  // rotation right by one
    _mm512_storeu_si512(out + i + 32, _mm512_shldi_epi16(high, high, 15));
  }
  return sound && taken == chunk.counts[0];
}

}  // namespace k3::codec
