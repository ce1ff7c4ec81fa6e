// MXFP4 decoding against values written out by hand, for every table.
#include "check.h"

namespace k3::test {

void check_mxfp4(Tally& tally, const Kernels& kernels) {
  // E2M1 by nibble, from the OCP Microscaling specification.
  const double e2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
  // Every nibble in both halves of a byte, under every scale but NaN.
  for (int scale = 0; scale < 255; scale++) {
    uint8_t packed[16];
    for (int j = 0; j < 16; j++) packed[j] = static_cast<uint8_t>(j | (15 - j) << 4);
    const auto byte = static_cast<uint8_t>(scale);
    float out[32];
    kernels.decode_mxfp4(packed, &byte, 1, 32, out);
    for (int j = 0; j < 16; j++) {
      const auto even = static_cast<float>(std::ldexp(e2m1[j], scale - 127));
      const auto odd = static_cast<float>(std::ldexp(e2m1[15 - j], scale - 127));
      tally.check(same_bits(out[2 * j], even) && same_bits(out[2 * j + 1], odd), "decode_mxfp4 value",
                  kernels.name);
    }
  }
  // Two rows by hand: nibbles 1 2 | 9 15 and so on, scales 126 (a half) and 128 (two).
  uint8_t packed[32] = {0x21, 0xf9, 0x70};
  packed[16] = 0x8c;
  const uint8_t scale[2] = {126, 128};
  float out[64];
  kernels.decode_mxfp4(packed, scale, 2, 32, out);
  const float first[6] = {0.25f, 0.5f, -0.25f, -3.0f, 0.0f, 3.0f};
  for (int i = 0; i < 6; i++) tally.check(same_bits(out[i], first[i]), "decode_mxfp4 by hand", kernels.name);
  tally.check(same_bits(out[32], -4.0f) && same_bits(out[33], -0.0f), "decode_mxfp4 by hand", kernels.name);
  // Their product with 1, 2, 3 ... in column order: 0.25 + 1 - 0.75 - 12 + 18 = 6.5, and -4.
  float x[32];
  for (int i = 0; i < 32; i++) x[i] = static_cast<float>(i + 1);
  float split[32];
  kernels.split_even_odd(x, 32, split);
  tally.check(split[0] == 1 && split[1] == 3 && split[15] == 31 && split[16] == 2 && split[31] == 32,
              "split_even_odd", kernels.name);
  float y[2];
  kernels.matmul_mxfp4(packed, scale, 2, 32, split, 32, 1, y, 2);
  tally.check(y[0] == 6.5f && y[1] == -4.0f, "matmul_mxfp4 by hand", kernels.name);
}

}  // namespace k3::test
