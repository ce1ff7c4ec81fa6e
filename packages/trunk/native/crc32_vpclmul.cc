// CRC-32 by carry-less multiplication of 512 bits (VPCLMULQDQ): four vectors, folded over 256 bytes at a
// time.
#include "crc32_fold.h"

namespace k3::codec {
namespace {

inline __m512i load(const uint8_t* p) {
  return _mm512_loadu_si512(p);
}

inline __m512i fold_lanes(__m512i state, __m512i constants, __m512i data) {
  const __m512i low = _mm512_clmulepi64_epi128(state, constants, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(state, constants, 0x11);
  return _mm512_ternarylogic_epi64(low, high, data, 0x96);  // the exclusive or of all three
}

}  // namespace

uint32_t crc32_vpclmul(const uint8_t* p, size_t bytes, uint32_t state) {
  const __m512i start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state)));
  __m512i x0 = _mm512_xor_si512(load(p), start);
  __m512i x1 = load(p + 64), x2 = load(p + 128), x3 = load(p + 192);
  const __m512i by256 = _mm512_broadcast_i32x4(fold_by<256>());
  for (p += 256, bytes -= 256; bytes >= 256; p += 256, bytes -= 256) {
    x0 = fold_lanes(x0, by256, load(p));
    x1 = fold_lanes(x1, by256, load(p + 64));
    x2 = fold_lanes(x2, by256, load(p + 128));
    x3 = fold_lanes(x3, by256, load(p + 192));
  }
  const __m512i by64 = _mm512_broadcast_i32x4(fold_by<64>());
  const __m512i x = fold_lanes(fold_lanes(fold_lanes(x0, by64, x1), by64, x2), by64, x3);
  const __m128i by16 = fold_by<16>();
  __m128i y = fold(_mm512_castsi512_si128(x), by16, _mm512_extracti32x4_epi32(x, 1));
  y = fold(y, by16, _mm512_extracti32x4_epi32(x, 2));
  y = fold(y, by16, _mm512_extracti32x4_epi32(x, 3));
  return reduce(y);
}

}  // namespace k3::codec
