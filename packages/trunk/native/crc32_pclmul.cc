// CRC-32 by carry-less multiplication of 128 bits: four remainders, folded over 64 bytes at a time.
#include "crc32_fold.h"

namespace k3::codec {
namespace {

inline __m128i load(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

}  // namespace

uint32_t crc32_pclmul(const uint8_t* p, size_t bytes, uint32_t state) {
  __m128i x0 = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i x1 = load(p + 16), x2 = load(p + 32), x3 = load(p + 48);
  const __m128i by64 = fold_by<64>();
  for (p += 64, bytes -= 64; bytes >= 64; p += 64, bytes -= 64) {
    x0 = fold(x0, by64, load(p));
    x1 = fold(x1, by64, load(p + 16));
    x2 = fold(x2, by64, load(p + 32));
    x3 = fold(x3, by64, load(p + 48));
  }
  const __m128i by16 = fold_by<16>();
  __m128i x = fold(fold(fold(x0, by16, x1), by16, x2), by16, x3);
  for (; bytes >= 16; p += 16, bytes -= 16) x = fold(x, by16, load(p));
  return reduce(x);
}

}  // namespace k3::codec
