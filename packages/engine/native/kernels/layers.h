// Norms, the short convolution, the KDA recurrence and weighted sums of rows.
// Included after a vector_*.h, elementary.h, elementwise.h and lanes.h.
#pragma once

namespace k3 {
namespace {

void rms_norm(const float* x, const float* w, float eps, size_t n, float* out) {
  const float inverse = 1.0f / __builtin_sqrtf(sum_squares(x, n) / static_cast<float>(n) + eps);
  map(x, w, n, out, [inverse](F v, F weight) { return (weight * v) * splat(inverse); });
}

void l2_norm(const float* x, float eps, float factor, size_t n, float* out) {
  const float inverse = 1.0f / __builtin_sqrtf(sum_squares(x, n) + eps);
  map(x, n, out, [inverse, factor](F v) { return (v * splat(inverse)) * splat(factor); });
}

// Channels are taken by blocks, whose taps are first transposed to [kernel][block].
void short_conv(const float* x, const float* taps, size_t channels, size_t kernel, float* history, float* y) {
  constexpr size_t kBlock = 32;
  constexpr size_t kMostTaps = 8;
  float turned[kMostTaps][kBlock] = {};
  float u[kMostTaps][kBlock] = {};
  for (size_t first = 0; first < channels; first += kBlock) {
    const size_t n = channels - first < kBlock ? channels - first : kBlock;
    for (size_t c = 0; c < n; c++)
      for (size_t j = 0; j < kernel; j++) turned[j][c] = taps[(first + c) * kernel + j];
    for (size_t j = 0; j + 1 < kernel; j++)
      std::memcpy(u[j], history + j * channels + first, n * sizeof(float));
    std::memcpy(u[kernel - 1], x + first, n * sizeof(float));
    for (size_t j = 0; j + 1 < kernel; j++)
      std::memcpy(history + j * channels + first, u[j + 1], n * sizeof(float));
    for (size_t c = 0; c < n; c += kWidth) {
      F sum = load(turned[0] + c) * load(u[0] + c);
      for (size_t j = 1; j < kernel; j++) sum = fma(load(turned[j] + c), load(u[j] + c), sum);
      sum = sum * sigmoid_of(sum);
      if (c + kWidth <= n) {
        store(y + first + c, sum);
      } else {
        store_part(y + first + c, sum, n - c);
      }
    }
  }
}

// The columns [v, v + kParts vectors) of the state. The decayed state is not written by the first pass: the
// second makes it again, by the same multiplication, and saves a pass of writes.
template <size_t kVectors>
inline void kda_columns(float* state, size_t dim, const float* q, const float* key, const float* value,
                        const float* alpha, float beta, float* out) {
  F u[kVectors] = {};
  for (size_t k = 0; k < dim; k++) {
    const float* row = state + k * dim;
    for (size_t i = 0; i < kVectors; i++)
      u[i] = fma(splat(key[k]), load(row + i * kWidth) * splat(alpha[k]), u[i]);
  }
  F d[kVectors];
  F sum[kVectors] = {};
  for (size_t i = 0; i < kVectors; i++) d[i] = splat(beta) * (load(value + i * kWidth) - u[i]);
  for (size_t k = 0; k < dim; k++) {
    float* row = state + k * dim;
    for (size_t i = 0; i < kVectors; i++) {
      const F next = fma(splat(key[k]), d[i], load(row + i * kWidth) * splat(alpha[k]));
      store(row + i * kWidth, next);
      sum[i] = fma(splat(q[k]), next, sum[i]);
    }
  }
  for (size_t i = 0; i < kVectors; i++) store(out + i * kWidth, sum[i]);
}

// The last columns, fewer than a vector.
inline void kda_last_columns(float* state, size_t dim, size_t n, const float* q, const float* key,
                             const float* value, const float* alpha, float beta, float* out) {
  F u = splat(0.0f);
  for (size_t k = 0; k < dim; k++) u = fma(splat(key[k]), load_part(state + k * dim, n) * splat(alpha[k]), u);
  const F d = splat(beta) * (load_part(value, n) - u);
  F sum = splat(0.0f);
  for (size_t k = 0; k < dim; k++) {
    const F next = fma(splat(key[k]), d, load_part(state + k * dim, n) * splat(alpha[k]));
    store_part(state + k * dim, next, n);
    sum = fma(splat(q[k]), next, sum);
  }
  store_part(out, sum, n);
}

void kda_step(float* state, size_t dim, const float* q, const float* key, const float* value,
              const float* alpha, float beta, float* out) {
  constexpr size_t kVectors = kRegisters / 4;  // the second pass keeps two of each
  size_t v = 0;
  for (; v + kVectors * kWidth <= dim; v += kVectors * kWidth)
    kda_columns<kVectors>(state + v, dim, q, key, value + v, alpha, beta, out + v);
  for (; v + kWidth <= dim; v += kWidth)
    kda_columns<1>(state + v, dim, q, key, value + v, alpha, beta, out + v);
  if (v < dim) kda_last_columns(state + v, dim, dim - v, q, key, value + v, alpha, beta, out + v);
}

inline F load_row(const uint16_t* p) {
  return widen(p);
}
inline F load_row(const float* p) {
  return load(p);
}

template <size_t kVectors, class Weight>
inline void accumulate_columns(const Weight* w, size_t rows, size_t cols, const float* a, float* out) {
  F sum[kVectors];
  for (size_t i = 0; i < kVectors; i++) sum[i] = load(out + i * kWidth);
  for (size_t d = 0; d < rows; d++)
    for (size_t i = 0; i < kVectors; i++)
      sum[i] = fma(splat(a[d]), load_row(w + d * cols + i * kWidth), sum[i]);
  for (size_t i = 0; i < kVectors; i++) store(out + i * kWidth, sum[i]);
}

template <class Weight>
inline void accumulate_rows(const Weight* w, size_t rows, size_t cols, const float* a, float* out) {
  constexpr size_t kVectors = 8;
  size_t c = 0;
  for (; c + kVectors * kWidth <= cols; c += kVectors * kWidth)
    accumulate_columns<kVectors>(w + c, rows, cols, a, out + c);
  for (; c + kWidth <= cols; c += kWidth) accumulate_columns<1>(w + c, rows, cols, a, out + c);
  if (c == cols) return;
  const size_t n = cols - c;
  F sum = load_part(out + c, n);
  for (size_t d = 0; d < rows; d++) {
    Weight end[kWidth] = {};
    std::memcpy(end, reinterpret_cast<const unsigned char*>(w) + (d * cols + c) * sizeof(Weight),
                n * sizeof(Weight));
    sum = fma(splat(a[d]), load_row(end), sum);
  }
  store_part(out + c, sum, n);
}

void accumulate_rows_bf16(const uint16_t* w, size_t rows, size_t cols, const float* a, float* out) {
  accumulate_rows(w, rows, cols, a, out);
}

void accumulate_rows_f32(const float* w, size_t rows, size_t cols, const float* a, float* out) {
  accumulate_rows(w, rows, cols, a, out);
}

}  // namespace
}  // namespace k3
