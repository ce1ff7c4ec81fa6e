// Sums over 32 lanes. Included after a vector_*.h, which has sum_lanes: lane l += lane l + 16, then 8, 4,
// 2, 1.
#pragma once

namespace k3 {
namespace {

constexpr size_t kLanes = 32;
constexpr size_t kParts = kLanes / kWidth;  // vectors that hold the lanes, in order

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
