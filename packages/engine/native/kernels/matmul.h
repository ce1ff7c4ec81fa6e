// The products of the table, on vectors. Included after stream.h and panel.h.
#pragma once

#include "panel.h"
#include "stream.h"

namespace k3 {
namespace {

template <class Weights>
inline void multiply_several(const Weights& weights, size_t rows, const float* x, size_t x_stride,
                             size_t tokens, float* y, size_t y_stride) {
  if (tokens <= kFewTokens) return multiply_few(weights, rows, x, x_stride, tokens, y, y_stride);
  multiply_tokens(weights, rows, x, x_stride, tokens, y, y_stride);
}

void matmul_bf16(const uint16_t* w, size_t rows, size_t cols, const float* x, size_t x_stride, size_t tokens,
                 float* y, size_t y_stride) {
  if (!rows || !tokens) return;
  if (tokens == 1) return stream_bf16({{w, cols}}, rows, x, y);
  multiply_several(Bf16Weights{{w, cols}}, rows, x, x_stride, tokens, y, y_stride);
}

void matmul_f32(const float* w, size_t rows, size_t cols, const float* x, size_t x_stride, size_t tokens,
                float* y, size_t y_stride) {
  if (!rows || !tokens) return;
  const F32Weights weights{{w, cols}};
  if (tokens > 1) return multiply_several(weights, rows, x, x_stride, tokens, y, y_stride);
  float x_tail[kLanes] = {};
  const size_t whole = cols / kLanes * kLanes;
  std::memcpy(x_tail, x + whole, (cols - whole) * sizeof(float));
  stream_rows(weights, 0, rows, 0, cols / kLanes, x, cols % kLanes ? x_tail : nullptr, nullptr, true, true,
              y);
}

void matmul_mxfp4(const uint8_t* packed, const uint8_t* scale, size_t rows, size_t cols, const float* x,
                  size_t x_stride, size_t tokens, float* y, size_t y_stride) {
  if (!rows || !tokens) return;
  const Mxfp4Weights weights{packed, scale, cols};
  if (tokens > 1) return multiply_several(weights, rows, x, x_stride, tokens, y, y_stride);
  stream_rows(weights, 0, rows, 0, cols / kGroup, x, nullptr, nullptr, true, true, y);
}

void decode_mxfp4(const uint8_t* packed, const uint8_t* scale, size_t rows, size_t cols, float* out) {
  const size_t groups = rows * (cols / kGroup);
  for (size_t g = 0; g < groups; g++) {
    F part[kParts];
    unpack_mxfp4(packed + g * (kGroup / 2), scale[g], part);
    store_interleaved(part, out + g * kGroup);
  }
}

}  // namespace
}  // namespace k3
