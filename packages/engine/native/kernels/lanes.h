// Sums over 32 lanes. Included after a vector_*.h.
#pragma once

namespace k3 {
namespace {

constexpr size_t kLanes = 32;
constexpr size_t kParts = kLanes / kWidth;  // vectors that hold the lanes, in order

// lane l += lane l + 16, then 8, 4, 2, 1.
inline float sum_lanes(const F (&part)[kParts]) {
  if constexpr (kWidth == 16) {
#ifdef __AVX512F__
    return sum_of_4(fold_8(fold_16(part[0] + part[1])));
#endif
  } else if constexpr (kWidth == 8) {
#ifdef __AVX2__
    return sum_of_4(fold_8((part[0] + part[2]) + (part[1] + part[3])));
#endif
  } else {
    float lanes[kLanes];
    std::memcpy(lanes, part, sizeof lanes);
    for (size_t half = kLanes / 2; half; half /= 2)
      for (size_t l = 0; l < half; l++) lanes[l] += lanes[l + half];
    return lanes[0];
  }
}

float dot(const float* a, const float* b, size_t n) {
  F part[kParts] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t p = 0; p < kParts; p++)
      part[p] = fma(load(a + i + p * kWidth), load(b + i + p * kWidth), part[p]);
  if (i < n) {
    float a_end[kLanes] = {};
    float b_end[kLanes] = {};
    std::memcpy(a_end, a + i, (n - i) * sizeof(float));
    std::memcpy(b_end, b + i, (n - i) * sizeof(float));
    for (size_t p = 0; p < kParts; p++)
      part[p] = fma(load(a_end + p * kWidth), load(b_end + p * kWidth), part[p]);
  }
  return sum_lanes(part);
}

float sum_squares(const float* x, size_t n) {
  return dot(x, x, n);
}

}  // namespace
}  // namespace k3
