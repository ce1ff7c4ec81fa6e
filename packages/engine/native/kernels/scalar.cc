// The reference: every other table must give these bits. Matrix products are written out here; the rest is
// the same source as the vector files, one element at a time.
#include "vector_scalar.h"
// Order matters: each of these uses what the ones before it define.
#include "elementary.h"
#include "elementwise.h"
#include "lanes.h"
#include "layers.h"
#include "mxfp4.h"
#include "tables.h"

namespace k3 {
namespace {

template <class Weight>
void matmul(const Weight* w, size_t rows, size_t cols, const float* x, size_t x_stride, size_t tokens,
            float* y, size_t y_stride) {
  for (size_t t = 0; t < tokens; t++) {
    for (size_t r = 0; r < rows; r++) {
      const auto* row = reinterpret_cast<const unsigned char*>(w) + r * cols * sizeof(Weight);
      float lanes[kLanes] = {};
      for (size_t i = 0; i < cols; i += kLanes) {
        const size_t n = cols - i < kLanes ? cols - i : kLanes;
        Weight weight[kLanes] = {};
        float operand[kLanes] = {};
        std::memcpy(weight, row + i * sizeof(Weight), n * sizeof(Weight));
        std::memcpy(operand, x + t * x_stride + i, n * sizeof(float));
        for (size_t l = 0; l < kLanes; l++) lanes[l] = fma(load_row(weight + l), operand[l], lanes[l]);
      }
      y[t * y_stride + r] = sum_lanes(lanes);
    }
  }
}

void matmul_bf16(const uint16_t* w, size_t rows, size_t cols, const float* x, size_t x_stride, size_t tokens,
                 float* y, size_t y_stride) {
  matmul(w, rows, cols, x, x_stride, tokens, y, y_stride);
}

void matmul_f32(const float* w, size_t rows, size_t cols, const float* x, size_t x_stride, size_t tokens,
                float* y, size_t y_stride) {
  matmul(w, rows, cols, x, x_stride, tokens, y, y_stride);
}

inline float mxfp4_value(uint32_t nibble, uint32_t scale) {
  return __builtin_bit_cast(float, mxfp4_bits(nibble & 7, scale) | (nibble & 8) << 28);
}

void matmul_mxfp4(const uint8_t* packed, const uint8_t* scale, size_t rows, size_t cols, const float* x,
                  size_t x_stride, size_t tokens, float* y, size_t y_stride) {
  const size_t groups = cols / kGroup;
  for (size_t t = 0; t < tokens; t++) {
    for (size_t r = 0; r < rows; r++) {
      float lanes[kLanes] = {};
      for (size_t g = 0; g < groups; g++) {
        const uint8_t* bytes = packed + (r * groups + g) * (kGroup / 2);
        const float* operand = x + t * x_stride + g * kGroup;
        const uint32_t s = scale[r * groups + g];
        for (size_t j = 0; j < 16; j++) {
          lanes[j] = fma(mxfp4_value(bytes[j] & 15, s), operand[j], lanes[j]);
          lanes[16 + j] = fma(mxfp4_value(bytes[j] >> 4, s), operand[16 + j], lanes[16 + j]);
        }
      }
      y[t * y_stride + r] = sum_lanes(lanes);
    }
  }
}

void split_even_odd(const float* x, size_t n, float* out) {
  for (size_t i = 0; i < n; i += kGroup) {
    for (size_t j = 0; j < 16; j++) {
      out[i + j] = x[i + 2 * j];
      out[i + 16 + j] = x[i + 2 * j + 1];
    }
  }
}

void decode_mxfp4(const uint8_t* packed, const uint8_t* scale, size_t rows, size_t cols, float* out) {
  const size_t groups = rows * (cols / kGroup);
  for (size_t g = 0; g < groups; g++) {
    for (size_t j = 0; j < 16; j++) {
      const uint32_t byte = packed[g * 16 + j];
      out[g * kGroup + 2 * j] = mxfp4_value(byte & 15, scale[g]);
      out[g * kGroup + 2 * j + 1] = mxfp4_value(byte >> 4, scale[g]);
    }
  }
}

}  // namespace
}  // namespace k3

#include "table.h"

namespace k3 {

const Kernels* scalar_kernels() {
  static constexpr Kernels table = table_named("scalar");
  return &table;
}

}  // namespace k3
