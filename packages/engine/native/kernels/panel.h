// Products with many tokens: a block of rows is widened into a small panel, which all tokens of the chunk
// use. The sums are kept lane by lane between the chunks of columns, so that the order of each lane's terms
// is that of the definition. Included after weight_rows.h; kTileRows x kTileTokens is what the registers hold
// of the sums.
#pragma once

#include "weight_rows.h"

namespace k3 {
namespace {

constexpr size_t kPanelColumns = 512;
constexpr size_t kPanelRows = 12;
constexpr size_t kPanelTokens = 32;
// Floats between the lanes of one row of the panel and the next: a little more than they are, or all rows
// would fall on the same sets of the first-level cache.
constexpr size_t kLanesRow = kPanelTokens * kLanes + 32;
static_assert(kPanelRows % kTileRows == 0);

// `steps` terms of one vector of lanes, for a tile of kRows rows and kTokens tokens. The panel's rows are
// `steps_held` vectors apart. Sums start from what `lanes` holds, which is [row][kLanesRow].
template <size_t kRows, size_t kTokens>
void tile(const float* panel, size_t steps_held, const float* x, size_t x_stride, size_t steps,
          float* lanes) {
  F sum[kRows][kTokens];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; r++)
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; t++) sum[r][t] = load(lanes + r * kLanesRow + t * kLanes);
  for (size_t s = 0; s < steps; s++) {
    F weight[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; r++) weight[r] = load(panel + (r * steps_held + s) * kWidth);
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; t++) {
      const F operand = load(x + t * x_stride + s * kLanes);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; r++) sum[r][t] = fma(weight[r], operand, sum[r][t]);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; r++)
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; t++) store(lanes + r * kLanesRow + t * kLanes, sum[r][t]);
}

using Tile = void (*)(const float*, size_t, const float*, size_t, size_t, float*);

template <size_t kRows>
inline Tile tile_of(size_t tokens) {
  static_assert(kTileTokens == 4);
  constexpr Tile tiles[4] = {tile<kRows, 1>, tile<kRows, 2>, tile<kRows, 3>, tile<kRows, 4>};
  return tiles[tokens - 1];
}

inline Tile tile_for(size_t rows, size_t tokens) {
  if constexpr (kTileRows >= 6) {
    if (rows == 6) return tile_of<6>(tokens);
    if (rows == 5) return tile_of<5>(tokens);
  }
  if constexpr (kTileRows >= 4) {
    if (rows == 4) return tile_of<4>(tokens);
  }
  if (rows == 3) return tile_of<3>(tokens);
  return rows == 2 ? tile_of<2>(tokens) : tile_of<1>(tokens);
}

// The panel is [part][kPanelRows][kPanelSteps][kWidth], the tail in the step after the last whole group.
constexpr size_t kPanelSteps = kPanelColumns / kLanes + 1;
constexpr size_t kPanelPart = kPanelRows * kPanelSteps * kWidth;

// Rows `next_row` on, from `next_group` on, are what the panel will hold next: they are asked for meanwhile.
template <class Weights>
inline void fill_panel(const Weights& weights, size_t first, size_t rows, size_t first_group, size_t groups,
                       bool tail, size_t next_row, size_t next_group, float* panel) {
  for (size_t r = 0; r < rows; r++) {
    const typename Weights::Row row = weights.row(first + r);
    float* out = panel + r * kPanelSteps * kWidth;
    const unsigned char* next =
        Weights::address(weights.row(next_row + r)) + next_group * Weights::kGroupBytes;
    F part[kParts];
    for (size_t g = 0; g < groups; g++) {
      prefetch(next + g * Weights::kGroupBytes, Weights::kGroupBytes);
      Weights::group(row, first_group + g, part);
      for (size_t i = 0; i < kParts; i++) store(out + i * kPanelPart + g * kWidth, part[i]);
    }
    if (!tail) continue;
    weights.tail(row, part);
    for (size_t i = 0; i < kParts; i++) store(out + i * kPanelPart + groups * kWidth, part[i]);
  }
}

// All tiles of a panel of `rows` rows with `tokens` tokens.
inline void multiply_panel(const float* panel, size_t rows, const float* x, size_t x_stride, size_t tokens,
                           size_t steps, float* lanes) {
  const size_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  size_t t = 0;
  for (size_t left = tiles; left; left--) {
    const size_t n = (tokens - t + left - 1) / left;  // tiles as even as possible
    for (size_t i = 0; i < kParts; i++) {
      for (size_t r = 0; r < rows; r += kTileRows) {
        const size_t tile_rows = rows - r < kTileRows ? rows - r : kTileRows;
        tile_for(tile_rows, n)(panel + i * kPanelPart + r * kPanelSteps * kWidth, kPanelSteps,
                               x + t * x_stride + i * kWidth, x_stride, steps,
                               lanes + r * kLanesRow + t * kLanes + i * kWidth);
      }
    }
    t += n;
  }
}

template <class Weights>
void multiply_tokens(const Weights& weights, size_t rows, const float* x, size_t x_stride, size_t tokens,
                     float* y, size_t y_stride) {
  alignas(64) float panel[kParts * kPanelPart];
  alignas(64) float lanes[kPanelRows * kLanesRow];
  float x_tail[kPanelTokens * kLanes];
  constexpr size_t kChunk = kPanelColumns / kLanes;
  const size_t groups = weights.cols / kLanes;
  const size_t rest = weights.cols % kLanes;
  for (size_t t = 0; t < tokens; t += kPanelTokens) {
    const size_t now = tokens - t < kPanelTokens ? tokens - t : kPanelTokens;
    const float* operands = x + t * x_stride;
    if (rest) {
      std::memset(x_tail, 0, sizeof x_tail);
      for (size_t i = 0; i < now; i++)
        std::memcpy(x_tail + i * kLanes, operands + i * x_stride + groups * kLanes, rest * sizeof(float));
    }
    for (size_t r = 0; r < rows; r += kPanelRows) {
      const size_t n = rows - r < kPanelRows ? rows - r : kPanelRows;
      std::memset(lanes, 0, n * kLanesRow * sizeof(float));
      size_t g = 0;
      do {
        const size_t chunk = groups - g < kChunk ? groups - g : kChunk;
        const bool last = g + chunk == groups;
        const bool tail = rest && last;
        fill_panel(weights, r, n, g, chunk, tail, last ? r + kPanelRows : r, last ? 0 : g + chunk, panel);
        multiply_panel(panel, n, operands + g * kLanes, x_stride, now, chunk, lanes);
        if (tail) multiply_panel(panel + chunk * kWidth, n, x_tail, kLanes, now, 1, lanes);
        g += chunk;
      } while (g < groups);
      for (size_t i = 0; i < now; i++) {
        for (size_t j = 0; j < n; j++) {
          F part[kParts];
          load_lanes(lanes + j * kLanesRow + i * kLanes, part);
          y[(t + i) * y_stride + r + j] = sum_lanes(part);
        }
      }
    }
  }
}

}  // namespace
}  // namespace k3
