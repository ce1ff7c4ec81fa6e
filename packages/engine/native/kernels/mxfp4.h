// The values of MXFP4: magnitude code (0 .. 7) and scale byte to the bits of a float32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace k3 {
namespace {

constexpr size_t kGroup = 32;  // columns that share a scale

// Bits of E2M1(code) * 2^(scale - 127), built from integers so that a compiler can make tables of it. Codes 2
// to 7 are 2^(code / 2 - 1) times 1 or 1.5; code 1 is 0.5. Scales 0 and 1 reach subnormals, exactly; 253 and
// 254 overflow.
constexpr uint32_t mxfp4_bits(uint32_t code, uint32_t scale) {
  if (scale == 255) return 0x7fc00000;
  if (code == 0) return 0;
  const int exponent = static_cast<int>(scale) + (code == 1 ? -1 : static_cast<int>(code / 2) - 1);
  const uint32_t mantissa = code > 1 && code % 2 ? 0x00400000 : 0;
  if (exponent >= 255) return 0x7f800000;
  if (exponent >= 1) return static_cast<uint32_t>(exponent) << 23 | mantissa;
  return (0x00800000 | mantissa) >> (1 - exponent);
}

}  // namespace
}  // namespace k3
