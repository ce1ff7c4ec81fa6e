// Four numbers at a time: NEON, which every AArch64 processor has. Operators come from the compiler's vector
// types.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace k3 {
namespace {

// The compiler's own types rather than float32x4_t, which is theirs too: Clang then knows ?: on them.
typedef float F __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
constexpr size_t kWidth = 4;
constexpr size_t kRegisters = 32;

// By memcpy: one instruction, and unlike vld1q_f32 it promises no alignment to the compiler.
inline F load(const float* p) {
  F v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, F v) {
  std::memcpy(p, &v, sizeof v);
}
inline F splat(float v) {
  return vdupq_n_f32(v);
}
inline I splat_bits(int32_t v) {
  return vdupq_n_s32(v);
}
inline I bits_of(F v) {
  return (I)v;
}
inline F float_of(I v) {
  return (F)v;
}
inline F fma(F a, F b, F c) {
  return vfmaq_f32(c, a, b);
}
inline F widen(const uint16_t* p) {
  uint16x4_t half;
  std::memcpy(&half, p, sizeof half);
  return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}

// (v0 + v2) + (v1 + v3): the last two halvings.
inline float sum_of_4(F v) {
  const float32x2_t two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

// The lanes of four vectors, halved by 8 and by 4 and so on.
inline float sum_of_16(F a, F b, F c, F d) {
  return sum_of_4((a + c) + (b + d));
}

inline float sum_lanes(const F (&part)[8]) {
  return sum_of_16(part[0] + part[4], part[1] + part[5], part[2] + part[6], part[3] + part[7]);
}

}  // namespace
}  // namespace k3
