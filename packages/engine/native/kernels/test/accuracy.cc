// The scalar table against double precision: products and sums within the error that float32 allows,
// elementary functions within a stated number of units in the last place.
#include <algorithm>
#include <functional>

#include "check.h"

namespace k3::test {
namespace {

using Kind = Random::Kind;

// Distance of `got` from `exact` in units of the last place of a float32 of that size (2^-149 for
// subnormals).
double ulps(float got, double exact) {
  if (std::isnan(got) || std::isnan(exact)) return std::isnan(got) && std::isnan(exact) ? 0 : INFINITY;
  if (std::isinf(got)) return std::fabs(exact) >= 0x1.fffffep127 && (got > 0) == (exact > 0) ? 0 : INFINITY;
  int exponent;
  std::frexp(exact, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::fabs(static_cast<double>(got) - exact) / unit;
}

double sigmoid_exactly(double x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

struct Function {
  const char* name;
  void (*call)(const float*, size_t, float*);
  double (*exact)(double);
  double limit;
  bool times_x;  // a product with x: below 2^-126 the other factor's last place counts x times
};

void check_function(Tally& tally, const Function& function, Random& random, bool thorough) {
  std::vector<float> x;
  const int steps = thorough ? 4'000'000 : 400'000;
  for (int i = -steps; i <= steps; i++)
    x.push_back(static_cast<float>(i) * (110.0f / static_cast<float>(steps)));
  for (int i = -steps; i <= steps; i++)
    x.push_back(static_cast<float>(i) * (1.5f / static_cast<float>(steps)));
  for (int i = 0; i < steps; i++) x.push_back(random.number(Kind::any_bits));
  for (const float edge : {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 0x1p-149f, 88.72283f, 88.72284f,
                           -103.97208f, -103.97209f, 0.625f, 9.01f, 0x1.fffffep127f, -0x1.fffffep127f})
    x.push_back(edge);
  std::vector<float> out(x.size());
  function.call(x.data(), x.size(), out.data());
  double worst = 0;
  float at = 0;
  for (size_t i = 0; i < x.size(); i++) {
    double off = ulps(out[i], function.exact(x[i]));
    if (function.times_x && x[i] < -87.0f) off /= std::fabs(static_cast<double>(x[i]));
    if (off > worst) worst = off, at = x[i];
  }
  std::printf("%-8s at most %.3f ulp from the true value (at %a), over %zu arguments\n", function.name, worst,
              static_cast<double>(at), x.size());
  tally.check(worst <= function.limit, function.name, "scalar", "too far from the true value");
}

// |dot - exact| <= (n / 32 + 6) rounding units of the sum of magnitudes.
bool close_sum(float got, double exact, double magnitude, size_t n) {
  return std::fabs(static_cast<double>(got) - exact) <=
         (static_cast<double>(n) / 32 + 6) * 0x1p-24 * magnitude + 0x1p-140;
}

void check_sums(Tally& tally, const Kernels& kernels, Random& random) {
  const size_t rows = 1 + random.below(7), cols = 1 + random.below(700), tokens = 1 + random.below(4);
  const auto w = numbers(random, rows * cols, Kind::ordinary);
  const auto x = numbers(random, tokens * cols, Kind::ordinary);
  std::vector<uint16_t> w16(rows * cols);
  std::vector<float> widened(rows * cols);
  for (size_t i = 0; i < rows * cols; i++) {
    uint32_t raw;
    std::memcpy(&raw, &w[i], sizeof raw);
    w16[i] = static_cast<uint16_t>(raw >> 16);
    raw &= 0xffff0000;
    std::memcpy(&widened[i], &raw, sizeof raw);
  }
  std::vector<float> y(tokens * rows), y16(tokens * rows);
  kernels.matmul_f32(w.get(), rows, cols, x.get(), cols, tokens, y.data(), rows);
  kernels.matmul_bf16(w16.data(), rows, cols, x.get(), cols, tokens, y16.data(), rows);
  for (size_t t = 0; t < tokens; t++) {
    for (size_t r = 0; r < rows; r++) {
      double sum = 0, sum16 = 0, magnitude = 0;
      for (size_t c = 0; c < cols; c++) {
        const double operand = x[t * cols + c];
        sum += operand * w[r * cols + c];
        sum16 += operand * widened[r * cols + c];
        magnitude += std::fabs(operand * w[r * cols + c]);
      }
      tally.check(close_sum(y[t * rows + r], sum, magnitude, cols), "matmul_f32", "scalar",
                  "far from double");
      tally.check(close_sum(y16[t * rows + r], sum16, magnitude, cols), "matmul_bf16", "scalar",
                  "far from double");
    }
  }
}

void check_mxfp4_sums(Tally& tally, const Kernels& kernels, Random& random) {
  const double e2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
  const size_t rows = 1 + random.below(5), groups = 1 + random.below(9), cols = groups * 32;
  std::vector<uint8_t> packed(rows * cols / 2), scale(rows * groups);
  for (auto& byte : packed) byte = static_cast<uint8_t>(random.bits());
  for (auto& byte : scale) byte = static_cast<uint8_t>(0x70 + random.below(11));
  const auto x = numbers(random, cols, Kind::ordinary);
  std::vector<float> split(cols), y(rows);
  kernels.split_even_odd(x.get(), cols, split.data());
  kernels.matmul_mxfp4(packed.data(), scale.data(), rows, cols, split.data(), cols, 1, y.data(), rows);
  for (size_t r = 0; r < rows; r++) {
    double sum = 0, magnitude = 0;
    for (size_t c = 0; c < cols; c++) {
      const uint8_t byte = packed[(r * cols + c) / 2];
      const double weight = std::ldexp(e2m1[c % 2 ? byte >> 4 : byte & 15], scale[(r * cols + c) / 32] - 127);
      sum += weight * x[c];
      magnitude += std::fabs(weight * x[c]);
    }
    tally.check(close_sum(y[r], sum, magnitude, cols), "matmul_mxfp4", "scalar", "far from double");
  }
}

// A few steps of the recurrence and of the convolution, followed in double.
void check_layers(Tally& tally, const Kernels& kernels, Random& random) {
  const size_t dim = 1 + random.below(40);
  std::vector<float> state(dim * dim);
  std::vector<double> exact(dim * dim);
  for (int token = 0; token < 6; token++) {
    const auto q = numbers(random, dim, Kind::ordinary), value = numbers(random, dim, Kind::ordinary);
    auto key = numbers(random, dim, Kind::ordinary), alpha = numbers(random, dim, Kind::ordinary);
    const float beta = std::fabs(random.uniform());
    kernels.l2_norm(key.get(), 1e-6f, 1.0f, dim, key.get());
    for (size_t k = 0; k < dim; k++) alpha[k] = std::fabs(alpha[k]);
    std::vector<float> out(dim);
    kernels.kda_step(state.data(), dim, q.get(), key.get(), value.get(), alpha.get(), beta, out.data());
    double worst = 0;
    for (size_t v = 0; v < dim; v++) {
      double u = 0, o = 0;
      for (size_t k = 0; k < dim; k++) u += key[k] * (exact[k * dim + v] *= alpha[k]);
      const double d = static_cast<double>(beta) * (value[v] - u);
      for (size_t k = 0; k < dim; k++) o += q[k] * (exact[k * dim + v] += key[k] * d);
      worst = std::max(worst, std::fabs(o - out[v]));
    }
    tally.check(worst <= 2e-5, "kda_step", "scalar", "far from double");
  }
  const size_t channels = 1 + random.below(20), kernel = 1 + random.below(5);
  const auto taps = numbers(random, channels * kernel, Kind::ordinary);
  std::vector<float> history((kernel - 1) * channels), y(channels);
  std::vector<Array<float>> inputs;
  for (size_t t = 0; t < 7; t++) {
    inputs.push_back(numbers(random, channels, Kind::ordinary));
    kernels.short_conv(inputs[t].get(), taps.get(), channels, kernel, history.data(), y.data());
    double worst = 0;
    for (size_t c = 0; c < channels; c++) {
      double sum = 0;
      for (size_t j = 0; j < kernel && j <= t; j++)
        sum += taps[c * kernel + kernel - 1 - j] * static_cast<double>(inputs[t - j][c]);
      worst = std::max(worst, std::fabs(sum * sigmoid_exactly(sum) - y[c]));
    }
    tally.check(worst <= 2e-6, "short_conv", "scalar", "far from double");
  }
}

void check_norms(Tally& tally, const Kernels& kernels, Random& random) {
  const size_t n = 1 + random.below(400);
  const auto x = numbers(random, n, Kind::ordinary), w = numbers(random, n, Kind::ordinary);
  double squares = 0;
  for (size_t i = 0; i < n; i++) squares += static_cast<double>(x[i]) * x[i];
  std::vector<float> rms(n), l2(n), glu(n);
  kernels.rms_norm(x.get(), w.get(), 1e-5f, n, rms.data());
  kernels.l2_norm(x.get(), 1e-6f, 0.125f, n, l2.data());
  kernels.situ_glu(x.get(), w.get(), 4.0f, 25.0f, n, glu.data());
  for (size_t i = 0; i < n; i++) {
    const double g = x[i], u = w[i];
    tally.check(
        ulps(rms[i], u * g / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(1e-5f))) < 16,
        "rms_norm", "scalar", "far from double");
    tally.check(ulps(l2[i], g / std::sqrt(squares + static_cast<double>(1e-6f)) * 0.125) < 16, "l2_norm",
                "scalar", "far from double");
    tally.check(ulps(glu[i], 4 * std::tanh(g / 4) * sigmoid_exactly(g) * 25 * std::tanh(u / 25)) < 12,
                "situ_glu", "scalar", "far from double");
  }
}

}  // namespace

void check_accuracy(Tally& tally, const Kernels& kernels, uint64_t seed, bool thorough) {
  Random random(seed);
  const Function functions[] = {
      {"exp", kernels.exp, [](double x) { return std::exp(x); }, 1.0, false},
      {"sigmoid", kernels.sigmoid, sigmoid_exactly, 3.0, false},
      {"silu", kernels.silu, [](double x) { return x * sigmoid_exactly(x); }, 3.5, true},
      {"tanh", kernels.tanh, [](double x) { return std::tanh(x); }, 3.0, false},
  };
  for (const auto& function : functions) check_function(tally, function, random, thorough);
  for (int i = 0; i < (thorough ? 2000 : 200); i++) {
    check_sums(tally, kernels, random);
    check_mxfp4_sums(tally, kernels, random);
    check_layers(tally, kernels, random);
    check_norms(tally, kernels, random);
  }
}

}  // namespace k3::test
