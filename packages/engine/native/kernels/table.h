// Puts the functions of the including file into a table.
#pragma once

#include "kernels.h"

namespace k3 {
namespace {

constexpr Kernels table_named(const char* name) {
  return {
      .name = name,
      .matmul_bf16 = matmul_bf16,
      .matmul_f32 = matmul_f32,
      .matmul_mxfp4 = matmul_mxfp4,
      .split_even_odd = split_even_odd,
      .decode_mxfp4 = decode_mxfp4,
      .accumulate_rows_bf16 = accumulate_rows_bf16,
      .accumulate_rows_f32 = accumulate_rows_f32,
      .dot = dot,
      .sum_squares = sum_squares,
      .max_abs = max_abs,
      .widen_bf16 = widen_bf16,
      .add = add,
      .scale = scale,
      .axpy = axpy,
      .exp = exp,
      .sigmoid = sigmoid,
      .tanh = tanh,
      .silu = silu,
      .multiply_sigmoid = multiply_sigmoid,
      .situ_glu = situ_glu,
      .rms_norm = rms_norm,
      .l2_norm = l2_norm,
      .short_conv = short_conv,
      .kda_step = kda_step,
  };
}

}  // namespace
}  // namespace k3
