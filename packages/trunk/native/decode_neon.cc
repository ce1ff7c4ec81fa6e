// The decoding kernel for NEON: 16 values a step. Each value's place among the others comes from sums over
// the bytes before it, so that one byte shuffle fills the others in, and no table is needed.
#include <arm_neon.h>

#include "codec_format.h"

namespace k3::codec {
namespace {

struct Step {
  uint8x16_t exponents;
  size_t taken;
};

// Adds to every byte the byte `kBytes` before it.
template <int kBytes>
inline uint8x16_t add_earlier(uint8x16_t v) {
  return vaddq_u8(v, vextq_u8(vdupq_n_u8(0), v, 16 - kBytes));
}

// `codes`: one to a byte.
inline Step expand_step(uint8x16_t codes, uint8x16_t dictionary, const uint8_t* others) {
  const uint8x16_t is_other = vceqq_u8(codes, vdupq_n_u8(kOther));  // -1 or 0
  const uint8x16_t counted =                                        // minus the others up to here
      add_earlier<8>(add_earlier<4>(add_earlier<2>(add_earlier<1>(is_other))));
  // ~-n is n - 1, the place of the n-th; all ones is no place, and the known exponent stays.
  const uint8x16_t place = vmvnq_u8(vandq_u8(counted, is_other));
  const uint8x16_t known = vqtbl1q_u8(dictionary, codes);
  return {vqtbx1q_u8(known, vld1q_u8(others), place), static_cast<uint8_t>(-vgetq_lane_u8(counted, 15))};
}

inline uint8x16_t load_dictionary(const uint8_t entry[4]) {
  const uint32_t packed = uint32_t{entry[0]} | uint32_t{entry[1]} << 8 | uint32_t{entry[2]} << 16;
  return vreinterpretq_u8_u32(vdupq_n_u32(packed));
}

// The codes of a group as four vectors of 16 consecutive values.
struct GroupCodes {
  uint8x16_t quarter[4];
};

inline GroupCodes group_codes(const uint8_t* codes) {
  const uint8x16_t all = vld1q_u8(codes);
  const uint8x16_t low = vdupq_n_u8(3);
  return {{vandq_u8(all, low), vandq_u8(vshrq_n_u8(all, 2), low), vandq_u8(vshrq_n_u8(all, 4), low),
           vshrq_n_u8(all, 6)}};
}

size_t expand(const uint8_t* codes, size_t values, const uint8_t entry[4], const uint8_t* others,
              uint8_t* out) {
  const uint8x16_t dictionary = load_dictionary(entry);
  size_t taken = 0;
  for (size_t i = 0; i < values; i += kGroupValues, codes += kGroupCodeBytes) {
    const GroupCodes group = group_codes(codes);
    for (size_t q = 0; q < 4; ++q) {
      const Step step = expand_step(group.quarter[q], dictionary, others + taken);
      taken += step.taken;
      vst1q_u8(out + i + 16 * q, step.exponents);
    }
  }
  return taken;
}

// exponent << 8 | mantissa << 1 | sign, rotated right by one, is the bf16 value.
inline void store_rotated(uint8x16_t x, uint16_t* out) {
  const uint16x8_t pairs = vreinterpretq_u16_u8(x);
  const uint16x8_t values = vsriq_n_u16(vshlq_n_u16(pairs, 15), pairs, 1);
  __builtin_memcpy(out, &values, sizeof values);  // out may be odd
}

}  // namespace
}  // namespace k3::codec

#include "decode_tail.h"

namespace k3::codec {

bool decode_chunk_neon(const Chunk& chunk, Scratch* scratch, uint16_t* out) {
  const bool sound = expand_tail(chunk, scratch);
  const uint8_t* second = scratch->level[0].bytes;
  const uint8x16_t dictionary = load_dictionary(chunk.dictionary[0]);
  const uint8_t* codes = chunk.codes[0];
  // Copies: for all the compiler knows, writing to out changes the chunk.
  const uint8_t* sign_mantissa = chunk.sign_mantissa;
  const size_t values = chunk.values;
  size_t taken = 0;
  for (size_t i = 0; i < values; i += kGroupValues, codes += kGroupCodeBytes) {
    const GroupCodes group = group_codes(codes);
    for (size_t q = 0; q < 4; ++q) {
      const Step step = expand_step(group.quarter[q], dictionary, second + taken);
      taken += step.taken;
      const uint8x16_t sm = vld1q_u8(sign_mantissa + i + 16 * q);
      store_rotated(vzip1q_u8(sm, step.exponents), out + i + 16 * q);
      store_rotated(vzip2q_u8(sm, step.exponents), out + i + 16 * q + 8);
    }
  }
  return sound && taken == chunk.counts[0];
}

}  // namespace k3::codec
