// One number at a time: the reference, and what machines without a vector file run (the loops over 32 lanes
// are shaped so that a compiler can vectorise them where fma is an instruction).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace k3 {
namespace {

using F = float;
using I = int32_t;
constexpr size_t kWidth = 1;
constexpr size_t kRegisters = 16;

inline F load(const float* p) {
  return *p;
}
inline void store(float* p, F v) {
  *p = v;
}
inline F splat(float v) {
  return v;
}
inline I splat_bits(int32_t v) {
  return v;
}
inline I bits_of(F v) {
  return __builtin_bit_cast(I, v);
}
inline F float_of(I v) {
  return __builtin_bit_cast(F, v);
}
inline F fma(F a, F b, F c) {
  return __builtin_fmaf(a, b, c);
}
inline F widen(const uint16_t* p) {
  uint16_t v;  // may be unaligned
  std::memcpy(&v, p, sizeof v);
  return float_of(static_cast<I>(static_cast<uint32_t>(v) << 16));
}

inline float sum_lanes(const F (&part)[32]) {
  float lanes[32];
  std::memcpy(lanes, part, sizeof lanes);
  for (size_t half = 16; half; half /= 2)
    for (size_t l = 0; l < half; l++) lanes[l] += lanes[l + half];
  return lanes[0];
}

}  // namespace
}  // namespace k3
