// CRC-32 by carry-less multiplication, after Gopal et al., "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction" (Intel, 2009): four 128-bit remainders are folded over 64 bytes at a time,
// then into one, then reduced to 32 bits by Barrett's method. Each constant is x^n mod P, bit-reflected and
// shifted left by one, for the distance n that its product is moved.
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
  uint64_t q = 0, high = 1,
           low = 0;  // the 65-bit dividend x^64: `high` holds its 33 leading bits while dividing
  high = uint64_t{1} << 32;
  for (int i = 32; i >= 0; --i) {
    q <<= 1;
    if ((high >> 32 & 1) != 0) {
      q |= 1;
      high ^= p;
    }
    high = high << 1 | (low & 1);
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

inline __m128i load(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

}  // namespace

// `bytes` is a multiple of 16 and at least 64.
uint32_t crc32_pclmul(const uint8_t* p, size_t bytes, uint32_t state) {
  __m128i x0 = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i x1 = load(p + 16), x2 = load(p + 32), x3 = load(p + 48);
  const __m128i by64 =
      _mm_set_epi64x(static_cast<long long>(power(512 - 32)), static_cast<long long>(power(512 + 32)));
  for (p += 64, bytes -= 64; bytes >= 64; p += 64, bytes -= 64) {
    x0 = fold(x0, by64, load(p));
    x1 = fold(x1, by64, load(p + 16));
    x2 = fold(x2, by64, load(p + 32));
    x3 = fold(x3, by64, load(p + 48));
  }
  const __m128i by16 =
      _mm_set_epi64x(static_cast<long long>(power(128 - 32)), static_cast<long long>(power(128 + 32)));
  __m128i x = fold(fold(fold(x0, by16, x1), by16, x2), by16, x3);
  for (; bytes >= 16; p += 16, bytes -= 16) x = fold(x, by16, load(p));

  // 128 to 64 bits, then to 32.
  const __m128i mask32 = _mm_set_epi32(0, 0, 0, -1);
  x = _mm_xor_si128(_mm_clmulepi64_si128(x, by16, 0x10), _mm_srli_si128(x, 8));
  const __m128i by8 = _mm_set_epi64x(0, static_cast<long long>(power(64)));
  x = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(x, mask32), by8, 0x00), _mm_srli_si128(x, 4));
  const __m128i barrett =
      _mm_set_epi64x(static_cast<long long>(quotient()), static_cast<long long>(kPolynomial));
  __m128i t = _mm_clmulepi64_si128(_mm_and_si128(x, mask32), barrett, 0x10);
  t = _mm_clmulepi64_si128(_mm_and_si128(t, mask32), barrett, 0x00);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(x, t), 1));
}

}  // namespace k3::codec
