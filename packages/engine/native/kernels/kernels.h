// The arithmetic of the engine, one table of functions per instruction set. Every table gives the same bits.
// The rules that make it so:
//
// 1. float32, round to nearest even, subnormals kept; no contraction by the compiler, fused multiply-add only
// where written, and then in every table.
//
// 2. A dot product of n terms has 32 lanes. Lane l accumulates, in ascending order of i, the terms i with
// i % 32 == l, each by one fma onto the lane, starting from +0. The operands are taken as padded with +0 to a
// multiple of 32, and the padding is multiplied like any other term. The lanes are then summed by halving:
// lane l += lane l + 16 for l < 16, then 8, 4, 2, 1.
//
// 3. MXFP4 rows are taken in groups of 32 columns. Within a group, column 2j is lane j and column 2j + 1 is
// lane 16 + j (the order in which the nibbles of 16 packed bytes come apart). Each weight is
// E2M1 * 2^(scale - 127) and enters by one fma. It is exact in float32, scales 0 and 1 included; with scales
// 253 and 254, which no checkpoint has, weights of 2^128 and more are infinite. Scale 255 makes NaN of the
// group, and is refused before it comes here.
//
// 4. exp, sigmoid, tanh and everything built on them are ours: libm differs between machines. Against the
// true value: exp within 1 ulp, sigmoid and tanh within 3. silu of minus infinity is NaN.
//
// 5. Where one table gives NaN, all do; its sign and payload are not promised.
//
// Pointers need the alignment of their element type only, weights (w, packed) none. Nothing allocates; a call
// uses up to 128 KiB of stack. Unless said otherwise an output may not overlap an input.
#pragma once

#include <cstddef>
#include <cstdint>

namespace k3 {

struct Kernels {
  const char* name;  // "scalar", "avx2", "avx512", "neon"

  // y[t * y_stride + r] = dot(w[r * cols ..], x[t * x_stride ..]) for t < tokens, r < rows. w may be
  // unaligned.
  void (*matmul_bf16)(const uint16_t* w, size_t rows, size_t cols, const float* x, size_t x_stride,
                      size_t tokens, float* y, size_t y_stride);
  void (*matmul_f32)(const float* w, size_t rows, size_t cols, const float* x, size_t x_stride, size_t tokens,
                     float* y, size_t y_stride);
  // packed [rows][cols / 2], scale [rows][cols / 32]; x as written by split_even_odd. cols is a multiple
  // of 32.
  void (*matmul_mxfp4)(const uint8_t* packed, const uint8_t* scale, size_t rows, size_t cols, const float* x,
                       size_t x_stride, size_t tokens, float* y, size_t y_stride);
  // Within each group of 32: the 16 even-numbered values, then the 16 odd-numbered. n is a multiple of 32.
  void (*split_even_odd)(const float* x, size_t n, float* out);
  // out[r * cols + c] = the exact float32 value of an MXFP4 weight, in column order (negative zero kept).
  void (*decode_mxfp4)(const uint8_t* packed, const uint8_t* scale, size_t rows, size_t cols, float* out);

  // out[c] = fma(a[d], w[d * cols + c], out[c]), d ascending from 0 to rows - 1: rows of bf16 weighed and
  // summed.
  void (*accumulate_rows_bf16)(const uint16_t* w, size_t rows, size_t cols, const float* a, float* out);
  void (*accumulate_rows_f32)(const float* w, size_t rows, size_t cols, const float* a, float* out);

  float (*dot)(const float* a, const float* b, size_t n);  // 32 lanes, as above
  float (*sum_squares)(const float* x, size_t n);          // dot(x, x)
  float (*max_abs)(const float* x, size_t n);              // 0 for n = 0; NaN when any is NaN

  // Element by element (in place allowed: out == x, or out == any other input of the same type).
  void (*widen_bf16)(const uint16_t* x, size_t n, float* out);
  void (*add)(const float* a, const float* b, size_t n, float* out);
  void (*scale)(const float* x, float factor, size_t n, float* out);
  void (*axpy)(float a, const float* x, size_t n, float* y);  // y = fma(a, x, y)
  void (*exp)(const float* x, size_t n, float* out);
  void (*sigmoid)(const float* x, size_t n, float* out);
  void (*tanh)(const float* x, size_t n, float* out);
  void (*silu)(const float* x, size_t n, float* out);                                 // x * sigmoid(x)
  void (*multiply_sigmoid)(const float* x, const float* gate, size_t n, float* out);  // x * sigmoid(gate)
  // [beta * tanh(g / beta) * sigmoid(g)] * [linear_beta * tanh(u / linear_beta)]
  void (*situ_glu)(const float* gate, const float* up, float beta, float linear_beta, size_t n, float* out);
  // out[c] = (w[c] * x[c]) * (1 / sqrt(sum_squares(x) / n + eps))
  void (*rms_norm)(const float* x, const float* w, float eps, size_t n, float* out);
  // x * (1 / sqrt(sum_squares(x) + eps)) * factor
  void (*l2_norm)(const float* x, float eps, float factor, size_t n, float* out);

  // Causal depthwise convolution of one token over `channels`, then SiLU: y[c] = silu(sum over j < kernel of
  // taps[c * kernel + j] * u[j][c]), where u[kernel - 1] is x and u[0 .. kernel - 2] is history (row j at
  // history + j * channels, oldest first). Ascending j, the first product plain, then fma. history is shifted
  // and takes x. y == x is allowed; kernel is 1 to 8.
  void (*short_conv)(const float* x, const float* taps, size_t channels, size_t kernel, float* history,
                     float* y);

  // One token of one KDA head. state [dim][dim] (key, value), row-major; q already scaled, alpha[k] the
  // decay.
  //   S[k][:] *= alpha[k];  u[v] = sum over k of fma(key[k], S[k][v]);  d[v] = beta * (value[v] - u[v]);
  //   S[k][v] = fma(key[k], d[v], S[k][v]);  out[v] = sum over k of fma(q[k], S[k][v]), k ascending from +0.
  void (*kda_step)(float* state, size_t dim, const float* q, const float* key, const float* value,
                   const float* alpha, float beta, float* out);
};

// The named table, or the best that this CPU runs when name is null; null when the name is unknown or not
// runnable.
const Kernels* kernels_for(const char* name);

}  // namespace k3
