// What both vector forms of CRC-32 share, after Gopal et al., "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction" (Intel, 2009): remainders are folded over a distance by carry-less
// multiplication with two constants, and the last one is reduced to 32 bits by Barrett's method. Each
// constant is x^n mod P, bit-reflected and shifted left by one, for the distance n that its product is moved.
// For files compiled with PCLMULQDQ only.
#pragma once

#include <immintrin.h>

#include "codec_format.h"

namespace k3::codec {
namespace {

constexpr uint64_t kReflected = 0xEDB88320u;

// The reflection of x^n mod P, times two: a 33-bit constant for the folding of reflected data.
constexpr uint64_t power(unsigned n) {
  uint64_t r = 0x80000000u;  // x^0, reflected
  for (unsigned i = 0; i < n; ++i) r = r >> 1 ^ ((r & 1) != 0 ? kReflected : 0);
  return r << 1;
}

// floor(x^64 / P), reflected to 33 bits.
constexpr uint64_t quotient() {
  constexpr uint64_t p = 0x104C11DB7u;
  uint64_t q = 0;
  uint64_t remainder = uint64_t{1} << 32;  // the 33 leading bits of x^64 that are left; all others are zero
  for (int i = 32; i >= 0; --i, remainder <<= 1) {
    const uint64_t bit = remainder >> 32 & 1;
    q = q << 1 | bit;
    if (bit != 0) remainder ^= p;
  }
  uint64_t reflected = 0;
  for (int i = 0; i <= 32; ++i) reflected |= (q >> i & 1) << (32 - i);
  return reflected;
}

constexpr uint64_t kPolynomial = kReflected << 1 | 1;  // P with its leading bit, reflected to 33 bits

inline __m128i fold(__m128i state, __m128i constants, __m128i data) {
  const __m128i low = _mm_clmulepi64_si128(state, constants, 0x00);
  const __m128i high = _mm_clmulepi64_si128(state, constants, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

// The constants that move a 128-bit remainder by so many bytes.
template <unsigned kBytes>
inline __m128i fold_by() {
  constexpr auto low = static_cast<long long>(power(8 * kBytes + 32));
  constexpr auto high = static_cast<long long>(power(8 * kBytes - 32));
  return _mm_set_epi64x(high, low);
}

// The state that a remainder stands for.
inline uint32_t reduce(__m128i x) {
  const __m128i mask32 = _mm_set_epi32(0, 0, 0, -1);
  x = _mm_xor_si128(_mm_clmulepi64_si128(x, fold_by<16>(), 0x10), _mm_srli_si128(x, 8));
  constexpr auto by_8_bytes = static_cast<long long>(power(64));
  const __m128i by8 = _mm_set_epi64x(0, by_8_bytes);
  x = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(x, mask32), by8, 0x00), _mm_srli_si128(x, 4));
  constexpr auto mu = static_cast<long long>(quotient());
  const __m128i barrett = _mm_set_epi64x(mu, static_cast<long long>(kPolynomial));
  __m128i t = _mm_clmulepi64_si128(_mm_and_si128(x, mask32), barrett, 0x10);
  t = _mm_clmulepi64_si128(_mm_and_si128(t, mask32), barrett, 0x00);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(x, t), 1));
}

}  // namespace
}  // namespace k3::codec
