// The functions that work element by element. Whatever is left over at the end goes through the same vector
// code by way of a small buffer: an element's bits depend neither on its place nor on the width. Included
// after a vector_*.h and elementary.h.
#pragma once

namespace k3 {
namespace {

inline F load_part(const float* p, size_t n) {
  float buffer[kWidth] = {};
  std::memcpy(buffer, p, n * sizeof(float));
  return load(buffer);
}

inline void store_part(float* p, F v, size_t n) {
  float buffer[kWidth];
  store(buffer, v);
  std::memcpy(p, buffer, n * sizeof(float));
}

template <class Function>
inline void map(const float* x, size_t n, float* out, Function f) {
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, f(load(x + i)));
  if (i < n) store_part(out + i, f(load_part(x + i, n - i)), n - i);
}

template <class Function>
inline void map(const float* a, const float* b, size_t n, float* out, Function f) {
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, f(load(a + i), load(b + i)));
  if (i < n) store_part(out + i, f(load_part(a + i, n - i), load_part(b + i, n - i)), n - i);
}

void widen_bf16(const uint16_t* x, size_t n, float* out) {
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, widen(x + i));
  if (i == n) return;
  uint16_t buffer[kWidth] = {};
  std::memcpy(buffer, x + i, (n - i) * sizeof(uint16_t));
  store_part(out + i, widen(buffer), n - i);
}

void add(const float* a, const float* b, size_t n, float* out) {
  map(a, b, n, out, [](F u, F v) { return u + v; });
}

void scale(const float* x, float factor, size_t n, float* out) {
  map(x, n, out, [factor](F v) { return v * splat(factor); });
}

void axpy(float a, const float* x, size_t n, float* y) {
  map(x, y, n, y, [a](F u, F v) { return fma(splat(a), u, v); });
}

void exp(const float* x, size_t n, float* out) {
  map(x, n, out, [](F v) { return exp_of(v); });
}

void sigmoid(const float* x, size_t n, float* out) {
  map(x, n, out, [](F v) { return sigmoid_of(v); });
}

void tanh(const float* x, size_t n, float* out) {
  map(x, n, out, [](F v) { return tanh_of(v); });
}

void silu(const float* x, size_t n, float* out) {
  map(x, n, out, [](F v) { return v * sigmoid_of(v); });
}

void multiply_sigmoid(const float* x, const float* gate, size_t n, float* out) {
  map(x, gate, n, out, [](F v, F g) { return v * sigmoid_of(g); });
}

void situ_glu(const float* gate, const float* up, float beta, float linear_beta, size_t n, float* out) {
  map(gate, up, n, out, [beta, linear_beta](F g, F u) {
    const F activated = (splat(beta) * tanh_of(g / splat(beta))) * sigmoid_of(g);
    return activated * (splat(linear_beta) * tanh_of(u / splat(linear_beta)));
  });
}

// Compared as integers: the bits of non-negative floats are in their order, infinity and then NaN above all.
float max_abs(const float* x, size_t n) {
  I most = splat_bits(0);
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const I v = bits_of(abs_of(load(x + i)));
    most = v > most ? v : most;
  }
  if (i < n) {
    const I v = bits_of(abs_of(load_part(x + i, n - i)));
    most = v > most ? v : most;
  }
  int32_t lanes[kWidth];
  std::memcpy(lanes, &most, sizeof lanes);
  int32_t result = 0;
  for (size_t l = 0; l < kWidth; l++) result = lanes[l] > result ? lanes[l] : result;
  return __builtin_bit_cast(float, result);
}

}  // namespace
}  // namespace k3
