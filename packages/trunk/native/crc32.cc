// CRC-32 as in zlib, gzip and PNG: polynomial 0x04C11DB7, reflected, initial and final inversion.
#include "codec.h"
#include "codec_format.h"

#if defined(K3_CODEC_NEON) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace k3::codec {
namespace {

struct Tables {
  uint32_t slice[8][256];
};

// slice[k][b]: what byte b does to the state when k more bytes follow it.
constexpr Tables make_tables() {
  Tables t{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t state = b;
    for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ ((state & 1) != 0 ? 0xEDB88320u : 0);
    t.slice[0][b] = state;
  }
  for (uint32_t b = 0; b < 256; ++b) {
    for (int k = 1; k < 8; ++k) t.slice[k][b] = t.slice[k - 1][b] >> 8 ^ t.slice[0][t.slice[k - 1][b] & 0xff];
  }
  return t;
}

constexpr Tables kTables = make_tables();

#ifdef K3_CODEC_X86
bool has_pclmul() {
  return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}
bool has_vpclmul() {
  return has_pclmul() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("vpclmulqdq");
}
const bool kHasPclmul = has_pclmul();
const bool kHasVpclmul = has_vpclmul();
#endif

#ifdef K3_CODEC_NEON
// An option of ARMv8.0 and a part of all that came after.
bool has_arm_crc() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#elif defined(__APPLE__)
  return true;
#else
  return false;
#endif
}
const bool kHasArmCrc = has_arm_crc();
#endif

}  // namespace

uint32_t crc32_table(const uint8_t* p, size_t bytes, uint32_t state) {
  const auto& t = kTables.slice;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    const uint32_t low =
        state ^ (uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24);
    state = t[7][low & 0xff] ^ t[6][low >> 8 & 0xff] ^ t[5][low >> 16 & 0xff] ^ t[4][low >> 24] ^ t[3][p[4]] ^
            t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]];
  }
  for (; bytes > 0; --bytes, ++p) state = state >> 8 ^ t[0][(state ^ *p) & 0xff];
  return state;
}

uint32_t crc32(const void* data, size_t bytes, uint32_t seed) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  uint32_t state = ~seed;
#ifdef K3_CODEC_X86
  if (kHasVpclmul && bytes >= 256) {
    const size_t folded = bytes & ~size_t{255};
    state = crc32_vpclmul(p, folded, state);
    p += folded;
    bytes -= folded;
  }
  if (kHasPclmul && bytes >= 64) {
    const size_t folded = bytes & ~size_t{15};
    state = crc32_pclmul(p, folded, state);
    p += folded;
    bytes -= folded;
  }
#endif
#ifdef K3_CODEC_NEON
  if (kHasArmCrc) {
    const size_t eights = bytes & ~size_t{7};
    state = crc32_arm(p, eights, state);
    p += eights;
    bytes -= eights;
  }
#endif
  return ~crc32_table(p, bytes, state);
}

}  // namespace k3::codec
