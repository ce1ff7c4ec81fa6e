// CRC-32 by the instructions of AArch64, which have this polynomial built in: 8 bytes a step.
#include <arm_acle.h>

#include "codec_format.h"

namespace k3::codec {

uint32_t crc32_arm(const uint8_t* p, size_t bytes, uint32_t state) {
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint64_t next;
    __builtin_memcpy(&next, p, sizeof next);
    state = __crc32d(state, next);
  }
  return state;
}

}  // namespace k3::codec
