// Products with one token or a few: the weights are read once, so memory is the limit, and the sums stay in
// registers. Included after the including file has defined split_group and these:
//
// kStreamRows: rows that go side by side with one token. They share the loads of x, and enough independent
// sums are in flight.
//
// kShareRows, kShareTokens: rows and tokens that share an unpacked weight, when there are several tokens.
//
// kFewTokens: the most tokens that are multiplied in this way.
#pragma once

#include "weight_rows.h"

namespace k3 {
namespace {

// How far ahead of whole rows memory is asked for, in bytes, at least; never less than the rows at work hold.
// Left to itself the processor follows several rows at once badly: this doubles the rate.
constexpr size_t kAhead = 86016;

// Columns of x that are reordered at a time (32 KiB of stack), and rows whose lanes wait meanwhile.
constexpr size_t kSplitColumns = 8192;
constexpr size_t kWaitingRows = 64;

// Rows [first, last) over one stretch of columns. `waiting` carries the lanes of up to kWaitingRows between
// stretches; it is read unless the stretch starts the row and written unless it ends it. x is in the order of
// the weights.
template <class Weights>
inline void stream_rows(const Weights& weights, size_t first, size_t last, size_t first_group, size_t groups,
                        const float* x, const float* x_tail, float* waiting, bool starts, bool ends,
                        float* y) {
  constexpr size_t kGroupBytes = Weights::kGroupBytes;
  constexpr size_t kStep = kStreamRows * kGroupBytes;
  const auto row_bytes =
      static_cast<size_t>(Weights::address(weights.row(1)) - Weights::address(weights.row(0)));
  const size_t held = kStreamRows * row_bytes;
  const bool whole = starts && ends;
  for (size_t r = first; r < last; r += kStreamRows) {
    typename Weights::Row row[kStreamRows];
    F sum[kStreamRows][kParts] = {};
    for (size_t i = 0; i < kStreamRows; i++) {
      const size_t which = r + i < last ? r + i : last - 1;  // rows past the end repeat the last, unused
      row[i] = weights.row(which);
      if (!starts) load_lanes(waiting + (which - first) * kLanes, sum[i]);
    }
    const unsigned char* ahead = Weights::address(row[0]) + (whole && held < kAhead ? kAhead : held);
    // A copy that only unrolled loops touch, or GCC writes every sum to memory in every step (bf16 from L2
    // with AVX2: 31 GB/s so, 37 with the copy).
    F now[kStreamRows][kParts];
#pragma GCC unroll 8
    for (size_t i = 0; i < kStreamRows; i++)
#pragma GCC unroll 8
      for (size_t p = 0; p < kParts; p++) now[i][p] = sum[i][p];
    for (size_t g = 0; g < groups; g++) {
      F operand[kParts];
      load_lanes(x + g * kLanes, operand);
      if (whole && g % 2 == 0) prefetch(ahead + g * kStep, 2 * kStep);
#pragma GCC unroll 8
      for (size_t i = 0; i < kStreamRows; i++) {
        F part[kParts];
        if (!whole) prefetch(ahead + i * row_bytes + (first_group + g) * kGroupBytes, kGroupBytes);
        Weights::group(row[i], first_group + g, part);
#pragma GCC unroll 8
        for (size_t p = 0; p < kParts; p++) now[i][p] = fma(part[p], operand[p], now[i][p]);
      }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < kStreamRows; i++)
#pragma GCC unroll 8
      for (size_t p = 0; p < kParts; p++) sum[i][p] = now[i][p];
    for (size_t i = 0; i < kStreamRows && r + i < last; i++) {
      if (x_tail) {
        F part[kParts];
        F operand[kParts];
        weights.tail(row[i], part);
        load_lanes(x_tail, operand);
        for (size_t p = 0; p < kParts; p++) sum[i][p] = fma(part[p], operand[p], sum[i][p]);
      }
      if (ends) {
        y[r + i] = Weights::sum(sum[i]);
      } else {
        for (size_t p = 0; p < kParts; p++) store(waiting + (r + i - first) * kLanes + p * kWidth, sum[i][p]);
      }
    }
  }
}

void split_even_odd(const float* x, size_t n, float* out) {
  for (size_t i = 0; i < n; i += kGroup) split_group(x + i, out + i);
}

// x is put into even and odd columns on the stack, by stretches when it is long.
inline void stream_bf16(const Bf16PairWeights& weights, size_t rows, const float* x, float* y) {
  const size_t groups = weights.cols / kLanes;
  const size_t rest = weights.cols % kLanes;
  alignas(64) float split[kSplitColumns];
  alignas(64) float waiting[kWaitingRows * kLanes];
  float x_tail[kLanes] = {};
  if (rest) {
    std::memcpy(x_tail, x + groups * kLanes, rest * sizeof(float));
    split_even_odd(x_tail, kLanes, x_tail);
  }
  constexpr size_t kStretch = kSplitColumns / kLanes;
  const bool whole = groups <= kStretch;
  const size_t block = whole ? rows : kWaitingRows;
  for (size_t first = 0; first < rows; first += block) {
    const size_t last = rows - first < block ? rows : first + block;
    size_t g = 0;
    do {
      const size_t n = groups - g < kStretch ? groups - g : kStretch;
      const bool ends = g + n == groups;
      split_even_odd(x + g * kLanes, n * kLanes, split);
      stream_rows(weights, first, last, g, n, split, ends && rest ? x_tail : nullptr, waiting, g == 0, ends,
                  y);
      g += n;
    } while (g < groups);
  }
}

template <size_t kValue>
struct Count {
  static constexpr size_t value = kValue;
};

// kRows rows from `first` on (those past `last` repeat its row) with kTokens tokens.
template <class Weights, size_t kRows, size_t kTokens>
void share_tile(const Weights& weights, size_t first, size_t last, const float* x, size_t x_stride,
                const float* x_tail, bool ask_ahead, float* y, size_t y_stride) {
  constexpr size_t kStep = kRows * Weights::kGroupBytes;
  typename Weights::Row row[kRows];
  for (size_t i = 0; i < kRows; i++) row[i] = weights.row(first + i < last ? first + i : last - 1);
  F sum[kRows][kTokens][kParts] = {};
  const unsigned char* ahead = Weights::address(row[0]) + kAhead;
  const size_t groups = weights.cols / kLanes;
  for (size_t g = 0; g < groups; g++) {
    if (ask_ahead) prefetch(ahead + g * kStep, kStep);
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; i++) {
      F part[kParts];
      Weights::group(row[i], g, part);
#pragma GCC unroll 8
      for (size_t t = 0; t < kTokens; t++)
#pragma GCC unroll 8
        for (size_t p = 0; p < kParts; p++)
          sum[i][t][p] = fma(part[p], load(x + t * x_stride + g * kLanes + p * kWidth), sum[i][t][p]);
    }
  }
  for (size_t i = 0; i < kRows && first + i < last; i++) {
    F part[kParts];
    if (x_tail) weights.tail(row[i], part);
    for (size_t t = 0; t < kTokens; t++) {
      if (x_tail)
        for (size_t p = 0; p < kParts; p++)
          sum[i][t][p] = fma(part[p], load(x_tail + t * kLanes + p * kWidth), sum[i][t][p]);
      y[t * y_stride + first + i] = Weights::sum(sum[i][t]);
    }
  }
}

// Up to kFewTokens tokens. Each group of rows meets all tokens before the next: from the caches, after the
// first.
template <class Weights>
inline void multiply_few(const Weights& weights, size_t rows, const float* x, size_t x_stride, size_t tokens,
                         float* y, size_t y_stride) {
  const size_t whole = weights.cols / kLanes * kLanes;
  const size_t rest = weights.cols - whole;
  float x_tail[kFewTokens * kLanes] = {};
  if (rest)
    for (size_t t = 0; t < tokens; t++)
      std::memcpy(x_tail + t * kLanes, x + t * x_stride + whole, rest * sizeof(float));
  const size_t shares = (tokens + kShareTokens - 1) / kShareTokens;
  for (size_t r = 0; r < rows; r += kShareRows) {
    size_t t = 0;
    for (size_t left = shares; left; left--) {
      const size_t n = (tokens - t + left - 1) / left;  // as even as possible
      const auto multiply = [&](auto count) {
        share_tile<Weights, kShareRows, decltype(count)::value>(weights, r, rows, x + t * x_stride, x_stride,
                                                                rest ? x_tail + t * kLanes : nullptr, t == 0,
                                                                y + t * y_stride, y_stride);
      };
      if (n == 1) multiply(Count<1>{});
      if (n == 2) multiply(Count<2>{});
      if constexpr (kShareTokens > 2) {
        if (n == 3) multiply(Count<3>{});
        if (n == 4) multiply(Count<4>{});
      }
      t += n;
    }
  }
}

}  // namespace
}  // namespace k3
