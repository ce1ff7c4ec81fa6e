// The decoding kernel in plain C++: the definition that the vector kernels must agree with, and the fallback.
#include "codec_format.h"

namespace k3::codec {
namespace {

// Exponents of one level: those in its dictionary, and in the places of the others the next of `others`,
// without a branch: which values are others cannot be predicted. Gives the number of others. `others` has
// room for as many reads as there are values, whatever the codes are.
size_t expand(const uint8_t* codes, size_t values, const uint8_t dictionary[4], const uint8_t* others,
              uint8_t* out) {
  const uint8_t known[4] = {dictionary[0], dictionary[1], dictionary[2], 0};
  size_t taken = 0;
  for (size_t i = 0; i < values; i += kGroupValues, codes += kGroupCodeBytes, out += kGroupValues) {
    for (size_t quarter = 0; quarter < 4; ++quarter) {
      for (size_t j = 0; j < kGroupCodeBytes; ++j) {
        const unsigned code = codes[j] >> (2 * quarter) & 3u;
        const unsigned is_other = (code + 1) >> 2;
        out[quarter * kGroupCodeBytes + j] =
            static_cast<uint8_t>(known[code] | (others[taken] & (0u - is_other)));
        taken += is_other;
      }
    }
  }
  return taken;
}

}  // namespace
}  // namespace k3::codec

#include "decode_tail.h"

namespace k3::codec {

bool decode_chunk_scalar(const Chunk& chunk, Scratch* scratch, uint16_t* out) {
  const bool sound = expand_tail(chunk, scratch);
  LevelBuffer exponents;
  const size_t taken =
      expand(chunk.codes[0], chunk.values, chunk.dictionary[0], scratch->level[0].bytes, exponents.bytes);
  const size_t padded = round_up(chunk.values, kGroupValues);
  for (size_t i = 0; i < padded; ++i) {
    const unsigned rotated = unsigned{exponents.bytes[i]} << 8 | chunk.sign_mantissa[i];
    out[i] = static_cast<uint16_t>(rotated >> 1 | rotated << 15);
  }
  return sound && taken == chunk.counts[0];
}

}  // namespace k3::codec
