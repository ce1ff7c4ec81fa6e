// Eight numbers at a time: AVX2 with FMA. Operators come from the compiler's vector types.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace k3 {
namespace {

using F = __m256;
typedef int32_t I __attribute__((vector_size(32), may_alias));
constexpr size_t kWidth = 8;
constexpr size_t kRegisters = 16;

inline F load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline void store(float* p, F v) {
  _mm256_storeu_ps(p, v);
}
inline F splat(float v) {
  return _mm256_set1_ps(v);
}
inline I splat_bits(int32_t v) {
  return (I)_mm256_set1_epi32(v);
}
inline I bits_of(F v) {
  return (I)v;
}
inline F float_of(I v) {
  return (F)v;
}
inline F fma(F a, F b, F c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline F widen(const uint16_t* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

// (v0 + v2) + (v1 + v3): the last two halvings.
inline float sum_of_4(__m128 v) {
  v = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}
inline __m128 fold_8(__m256 v) {
  return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

inline float sum_lanes(const F (&part)[4]) {
  return sum_of_4(fold_8((part[0] + part[2]) + (part[1] + part[3])));
}

}  // namespace
}  // namespace k3
