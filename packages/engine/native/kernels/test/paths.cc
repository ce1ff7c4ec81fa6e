// Bits of one table against those of the scalar table, on random shapes, alignments and numbers.
#include <string>

#include "check.h"

namespace k3::test {
namespace {

using Kind = Random::Kind;

struct Pair {
  Tally& tally;
  const Kernels& scalar;
  const Kernels& vector;
  Random& random;
  void check(bool good, const char* what, const std::string& detail) const {
    tally.check(good, what, vector.name, detail.c_str());
  }
};

Kind any_kind(Random& random) {
  const size_t draw = random.below(4);
  return draw == 0 ? Kind::any_bits : draw == 1 ? Kind::finite : Kind::ordinary;
}

std::string shape(size_t rows, size_t cols, size_t tokens) {
  return std::to_string(rows) + " x " + std::to_string(cols) + ", " + std::to_string(tokens) + " tokens";
}

// Mostly small, now and then past the sizes at which the kernels cut their work (1024 and 8192 columns, 64
// rows).
size_t some_columns(Random& random) {
  const size_t draw = random.below(20);
  if (draw == 0) return 8000 + random.below(9500);
  if (draw <= 3) return 900 + random.below(1400);
  return random.below(200);
}

Array<uint16_t> bf16_weights(Random& random, size_t n, Kind kind) {
  Array<uint16_t> out(n, random.below(5));
  for (size_t i = 0; i < n; i++) {
    const float value = random.number(kind);
    uint32_t raw;
    std::memcpy(&raw, &value, sizeof raw);
    out[i] = static_cast<uint16_t>(raw >> 16);
  }
  return out;
}

void check_products(const Pair& pair) {
  Random& random = pair.random;
  const size_t cols = some_columns(random);
  const size_t rows = cols > 4000 ? 1 + random.below(5) : random.below(90);
  const size_t tokens = random.below(3) ? 1 : random.below(cols > 400 ? 7 : 75);
  const Kind kind = any_kind(random);
  const size_t x_stride = cols + random.below(4);
  const size_t y_stride = rows + random.below(4);
  const auto x = numbers(random, tokens ? (tokens - 1) * x_stride + cols : 0, kind);
  Array<float> expected(tokens ? (tokens - 1) * y_stride + rows : 0, 0);
  auto got = expected;
  const auto w16 = bf16_weights(random, rows * cols, kind);
  pair.scalar.matmul_bf16(w16.get(), rows, cols, x.get(), x_stride, tokens, expected.get(), y_stride);
  pair.vector.matmul_bf16(w16.get(), rows, cols, x.get(), x_stride, tokens, got.get(), y_stride);
  pair.check(same_bits(expected, got), "matmul_bf16", shape(rows, cols, tokens));
  const auto w32 = numbers(random, rows * cols, kind);
  pair.scalar.matmul_f32(w32.get(), rows, cols, x.get(), x_stride, tokens, expected.get(), y_stride);
  pair.vector.matmul_f32(w32.get(), rows, cols, x.get(), x_stride, tokens, got.get(), y_stride);
  pair.check(same_bits(expected, got), "matmul_f32", shape(rows, cols, tokens));
}

// Weights in memory that is not even aligned to their type, as in a file mapped at any offset.
void check_unaligned_weights(const Pair& pair) {
  Random& random = pair.random;
  const size_t rows = 1 + random.below(9), cols = 1 + random.below(150), tokens = 1 + random.below(3);
  Array<uint8_t> bytes(rows * cols * 4 + 1, 1);
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(random.bits());
  const auto x = numbers(random, tokens * cols, Kind::ordinary);
  Array<float> expected(tokens * rows, 0);
  auto got = expected;
  const auto* w16 = reinterpret_cast<const uint16_t*>(bytes.get());
  pair.scalar.matmul_bf16(w16, rows, cols, x.get(), cols, tokens, expected.get(), rows);
  pair.vector.matmul_bf16(w16, rows, cols, x.get(), cols, tokens, got.get(), rows);
  pair.check(same_bits(expected, got), "matmul_bf16 unaligned", shape(rows, cols, tokens));
}

void check_mxfp4_products(const Pair& pair) {
  Random& random = pair.random;
  const size_t groups = some_columns(random) / 32, cols = groups * 32;
  const size_t rows = random.below(cols > 4000 ? 6 : 40);
  const size_t tokens = random.below(3) ? 1 : random.below(cols > 400 ? 7 : 75);
  Array<uint8_t> packed(rows * cols / 2, random.below(5));
  Array<uint8_t> scale(rows * groups, random.below(5));
  for (size_t i = 0; i < packed.size(); i++) packed[i] = static_cast<uint8_t>(random.bits());
  const bool usual = random.below(2);
  for (size_t i = 0; i < scale.size(); i++)
    scale[i] = static_cast<uint8_t>(usual ? 0x70 + random.below(11) : random.below(255));
  const auto x = numbers(random, tokens * cols, any_kind(random));
  auto x_split = x, x_split_too = x;
  pair.scalar.split_even_odd(x.get(), x.size(), x_split.get());
  pair.vector.split_even_odd(x.get(), x.size(), x_split_too.get());
  pair.check(same_bits(x_split, x_split_too), "split_even_odd", std::to_string(x.size()));
  Array<float> expected(tokens * rows, 0);
  auto got = expected;
  pair.scalar.matmul_mxfp4(packed.get(), scale.get(), rows, cols, x_split.get(), cols, tokens, expected.get(),
                           rows);
  pair.vector.matmul_mxfp4(packed.get(), scale.get(), rows, cols, x_split.get(), cols, tokens, got.get(),
                           rows);
  pair.check(same_bits(expected, got), "matmul_mxfp4", shape(rows, cols, tokens));
  Array<float> values(rows * cols, 0);
  auto values_too = values;
  pair.scalar.decode_mxfp4(packed.get(), scale.get(), rows, cols, values.get());
  pair.vector.decode_mxfp4(packed.get(), scale.get(), rows, cols, values_too.get());
  pair.check(same_bits(values, values_too), "decode_mxfp4", shape(rows, cols, 0));
}

void check_row_sums(const Pair& pair) {
  Random& random = pair.random;
  const size_t rows = random.below(70), cols = random.below(300);
  const Kind kind = any_kind(random);
  const auto a = numbers(random, rows, kind);
  const auto start = numbers(random, cols, kind);
  const auto w16 = bf16_weights(random, rows * cols, kind);
  const auto w32 = numbers(random, rows * cols, kind);
  auto expected = start, got = start;
  pair.scalar.accumulate_rows_bf16(w16.get(), rows, cols, a.get(), expected.get());
  pair.vector.accumulate_rows_bf16(w16.get(), rows, cols, a.get(), got.get());
  pair.check(same_bits(expected, got), "accumulate_rows_bf16", shape(rows, cols, 1));
  expected = start, got = start;
  pair.scalar.accumulate_rows_f32(w32.get(), rows, cols, a.get(), expected.get());
  pair.vector.accumulate_rows_f32(w32.get(), rows, cols, a.get(), got.get());
  pair.check(same_bits(expected, got), "accumulate_rows_f32", shape(rows, cols, 1));
}

// Checks one function of n numbers, out of place and in place.
template <class Call>
void check_map(const Pair& pair, const char* what, const Array<float>& x, Call call) {
  Array<float> expected(x.size(), 0);
  Array<float> got(x.size(), pair.random.below(5));
  call(pair.scalar, x.get(), expected.get());
  call(pair.vector, x.get(), got.get());
  pair.check(same_bits(expected, got), what, std::to_string(x.size()));
  auto in_place = x;
  call(pair.vector, in_place.get(), in_place.get());
  pair.check(same_bits(expected, in_place), what, std::to_string(x.size()) + " in place");
}

void check_elementwise(const Pair& pair) {
  Random& random = pair.random;
  const size_t n = random.below(random.below(8) ? 100 : 3000);
  const Kind kind = any_kind(random);
  auto x = numbers(random, n, kind);
  if (kind == Kind::ordinary) {
    const float reach = static_cast<float>(1 + random.below(120));
    for (size_t i = 0; i < n; i++) x[i] *= reach;
  }
  const auto other = numbers(random, n, any_kind(random));
  const float factor = random.number(kind);
  check_map(pair, "exp", x, [n](const Kernels& k, const float* p, float* out) { k.exp(p, n, out); });
  check_map(pair, "sigmoid", x, [n](const Kernels& k, const float* p, float* out) { k.sigmoid(p, n, out); });
  check_map(pair, "tanh", x, [n](const Kernels& k, const float* p, float* out) { k.tanh(p, n, out); });
  check_map(pair, "silu", x, [n](const Kernels& k, const float* p, float* out) { k.silu(p, n, out); });
  check_map(pair, "scale", x,
            [=](const Kernels& k, const float* p, float* out) { k.scale(p, factor, n, out); });
  check_map(pair, "add", x,
            [&](const Kernels& k, const float* p, float* out) { k.add(p, other.get(), n, out); });
  check_map(pair, "multiply_sigmoid", x, [&](const Kernels& k, const float* p, float* out) {
    k.multiply_sigmoid(p, other.get(), n, out);
  });
  check_map(pair, "situ_glu", x, [&](const Kernels& k, const float* p, float* out) {
    k.situ_glu(p, other.get(), 4.0f, 25.0f, n, out);
  });
  check_map(pair, "situ_glu", x, [&](const Kernels& k, const float* p, float* out) {
    k.situ_glu(other.get(), p, 1.0f, 7.3f, n, out);
  });
  check_map(pair, "rms_norm", x,
            [&](const Kernels& k, const float* p, float* out) { k.rms_norm(p, other.get(), 1e-5f, n, out); });
  check_map(pair, "l2_norm", x,
            [n](const Kernels& k, const float* p, float* out) { k.l2_norm(p, 1e-6f, 0.088f, n, out); });
  auto expected = other, got = other;
  pair.scalar.axpy(factor, x.get(), n, expected.get());
  pair.vector.axpy(factor, x.get(), n, got.get());
  pair.check(same_bits(expected, got), "axpy", std::to_string(n));
  const auto w16 = bf16_weights(random, n, kind);
  pair.scalar.widen_bf16(w16.get(), n, expected.get());
  pair.vector.widen_bf16(w16.get(), n, got.get());
  pair.check(same_bits(expected, got), "widen_bf16", std::to_string(n));
  const Kernels &s = pair.scalar, &v = pair.vector;
  pair.check(same_bits(s.dot(x.get(), other.get(), n), v.dot(x.get(), other.get(), n)), "dot",
             std::to_string(n));
  pair.check(same_bits(s.sum_squares(x.get(), n), v.sum_squares(x.get(), n)), "sum_squares",
             std::to_string(n));
  pair.check(same_bits(s.max_abs(x.get(), n), v.max_abs(x.get(), n)), "max_abs", std::to_string(n));
}

void check_short_conv(const Pair& pair) {
  Random& random = pair.random;
  const size_t channels = random.below(150), kernel = 1 + random.below(8);
  const Kind kind = any_kind(random);
  const auto taps = numbers(random, channels * kernel, kind);
  auto history = numbers(random, channels * (kernel - 1), kind);
  auto history_too = history;
  Array<float> expected(channels, 0), got(channels, 0);
  for (size_t token = 0; token < kernel + 1; token++) {
    const auto x = numbers(random, channels, kind);
    pair.scalar.short_conv(x.get(), taps.get(), channels, kernel, history.get(), expected.get());
    got = x;
    pair.vector.short_conv(got.get(), taps.get(), channels, kernel, history_too.get(), got.get());
    const std::string detail = std::to_string(channels) + " channels, kernel " + std::to_string(kernel);
    pair.check(same_bits(expected, got), "short_conv", detail);
    pair.check(same_bits(history, history_too), "short_conv history", detail);
  }
}

void check_kda(const Pair& pair) {
  Random& random = pair.random;
  const size_t dim = random.below(6) ? random.below(80) : 128 * random.below(3);
  const Kind kind = any_kind(random);
  auto state = numbers(random, dim * dim, kind);
  auto state_too = state;
  Array<float> expected(dim, 0), got(dim, 0);
  for (size_t token = 0; token < 3; token++) {
    const auto q = numbers(random, dim, kind), key = numbers(random, dim, kind),
               value = numbers(random, dim, kind);
    const auto alpha = numbers(random, dim, kind);
    const float beta = random.number(kind);
    pair.scalar.kda_step(state.get(), dim, q.get(), key.get(), value.get(), alpha.get(), beta,
                         expected.get());
    pair.vector.kda_step(state_too.get(), dim, q.get(), key.get(), value.get(), alpha.get(), beta, got.get());
    pair.check(same_bits(expected, got), "kda_step", std::to_string(dim));
    pair.check(same_bits(state, state_too), "kda_step state", std::to_string(dim));
  }
}

}  // namespace

void check_paths(Tally& tally, const Kernels& kernels, uint64_t seed, size_t rounds) {
  Random random(seed);
  const Pair pair{tally, *kernels_for("scalar"), kernels, random};
  for (size_t i = 0; i < rounds; i++) {
    check_products(pair);
    check_unaligned_weights(pair);
    check_mxfp4_products(pair);
    check_row_sums(pair);
    check_elementwise(pair);
    check_short_conv(pair);
    check_kda(pair);
  }
}

}  // namespace k3::test
