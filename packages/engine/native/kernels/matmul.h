// Matrix products on vectors. Included after a vector_*.h, lanes.h and mxfp4.h, and after the including file
// has defined, for its instruction set:
//   unpack_pairs(bytes, w)          32 bf16 to float32, the even columns in w's first half, the odd in its
//   second sum_pairs(w)                    sum_lanes of lanes in that order unpack_mxfp4(bytes, scale, w)   a
//   group of MXFP4 to float32, in the order of its lanes kStreamRows                     rows that share the
//   operand in a product with one token kTileRows, kTileTokens          accumulators of the product with
//   several tokens
//
// One token: the weights are read once and each is used once, so memory is the limit; kStreamRows rows go
// side by side to share the loads of x and to have enough independent sums in flight. Several tokens: a block
// of rows is widened into a small panel, which all tokens of the chunk use; the sums are kept lane by lane
// between the chunks of columns, so the order of each lane's terms is that of the definition.
#pragma once

namespace k3 {
namespace {

// Where the 32 weights of (row, group) come from. group() serves whole groups, tail() the last columns,
// zero-padded.
struct Bf16Weights {
  using Row = const unsigned char*;
  const uint16_t* w;
  size_t cols;
  Row row(size_t r) const { return reinterpret_cast<Row>(w) + r * cols * sizeof(uint16_t); }
  static void group(Row p, size_t g, F (&part)[kParts]) {
    for (size_t i = 0; i < kParts; i++)
      part[i] = widen(reinterpret_cast<const uint16_t*>(p + g * kLanes * sizeof(uint16_t)) + i * kWidth);
  }
  void tail(Row p, F (&part)[kParts]) const {
    uint16_t end[kLanes] = {};
    const size_t whole = cols / kLanes * kLanes;
    std::memcpy(end, p + whole * sizeof(uint16_t), (cols - whole) * sizeof(uint16_t));
    group(reinterpret_cast<Row>(end), 0, part);
  }
  static float sum(const F (&part)[kParts]) { return sum_lanes(part); }
};

// The same weights in the order that costs least to unpack; x must then be in the order of split_even_odd.
struct Bf16PairWeights : Bf16Weights {
  static void group(Row p, size_t g, F (&part)[kParts]) {
    unpack_pairs(p + g * kLanes * sizeof(uint16_t), part);
  }
  void tail(Row p, F (&part)[kParts]) const {
    uint16_t end[kLanes] = {};
    const size_t whole = cols / kLanes * kLanes;
    std::memcpy(end, p + whole * sizeof(uint16_t), (cols - whole) * sizeof(uint16_t));
    unpack_pairs(reinterpret_cast<Row>(end), part);
  }
  static float sum(const F (&part)[kParts]) { return sum_pairs(part); }
};

struct F32Weights {
  using Row = const unsigned char*;
  const float* w;
  size_t cols;
  Row row(size_t r) const { return reinterpret_cast<Row>(w) + r * cols * sizeof(float); }
  static void group(Row p, size_t g, F (&part)[kParts]) {
    for (size_t i = 0; i < kParts; i++)
      part[i] = load(reinterpret_cast<const float*>(p + g * kLanes * sizeof(float)) + i * kWidth);
  }
  void tail(Row p, F (&part)[kParts]) const {
    float end[kLanes] = {};
    const size_t whole = cols / kLanes * kLanes;
    std::memcpy(end, p + whole * sizeof(float), (cols - whole) * sizeof(float));
    group(reinterpret_cast<Row>(end), 0, part);
  }
  static float sum(const F (&part)[kParts]) { return sum_lanes(part); }
};

struct Mxfp4Weights {
  struct Row {
    const uint8_t* bytes;
    const uint8_t* scales;
  };
  const uint8_t* packed;
  const uint8_t* scale;
  size_t cols;
  Row row(size_t r) const { return {packed + r * (cols / 2), scale + r * (cols / kGroup)}; }
  static void group(Row p, size_t g, F (&part)[kParts]) {
    unpack_mxfp4(p.bytes + g * (kGroup / 2), p.scales[g], part);
  }
  void tail(Row, F (&part)[kParts]) const {  // never called: cols is a multiple of 32
    for (size_t i = 0; i < kParts; i++) part[i] = splat(0.0f);
  }
  static float sum(const F (&part)[kParts]) { return sum_lanes(part); }
};

inline void load_lanes(const float* p, F (&part)[kParts]) {
  for (size_t i = 0; i < kParts; i++) part[i] = load(p + i * kWidth);
}

// ---- one token ----

// Columns of x that are reordered at a time (32 KiB of stack), and rows whose lanes wait meanwhile.
constexpr size_t kSplitColumns = 8192;
constexpr size_t kWaitingRows = 64;

// Groups [0, groups) of kStreamRows rows from column `first` on, onto the lanes in sum.
template <class Weights>
inline void stream_groups(const typename Weights::Row (&row)[kStreamRows], size_t first_group, size_t groups,
                          const float* x, F (&sum)[kStreamRows][kParts]) {
  for (size_t g = 0; g < groups; g++) {
    F operand[kParts];
    load_lanes(x + g * kLanes, operand);
#pragma GCC unroll 8
    for (size_t r = 0; r < kStreamRows; r++) {
      F part[kParts];
      Weights::group(row[r], first_group + g, part);
#pragma GCC unroll 8
      for (size_t i = 0; i < kParts; i++) sum[r][i] = fma(part[i], operand[i], sum[r][i]);
    }
  }
}

// Rows [first, last) over one stretch of columns. `waiting` carries the lanes of [kWaitingRows] between
// stretches; it is read unless the stretch starts the row and written unless it ends it. x is in the order of
// the weights.
template <class Weights>
inline void stream_rows(const Weights& weights, size_t first, size_t last, size_t first_group, size_t groups,
                        const float* x, const float* x_tail, float* waiting, bool starts, bool ends,
                        float* y) {
  for (size_t r = first; r < last; r += kStreamRows) {
    typename Weights::Row row[kStreamRows];
    F sum[kStreamRows][kParts] = {};
    for (size_t i = 0; i < kStreamRows; i++) {
      const size_t which = r + i < last ? r + i : last - 1;  // rows past the end repeat the last, unused
      row[i] = weights.row(which);
      if (!starts) load_lanes(waiting + (which - first) * kLanes, sum[i]);
    }
    stream_groups<Weights>(row, first_group, groups, x, sum);
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

// ---- several tokens ----

constexpr size_t kPanelColumns = 1024;
constexpr size_t kPanelRows = 12;
constexpr size_t kPanelTokens = 32;
static_assert(kPanelRows % kTileRows == 0);

// `steps` terms of one vector of lanes, for a tile of kRows rows and kTokens tokens. The panel's rows are
// `steps_held` vectors apart. Sums start from what `lanes` holds, which is [row][kPanelTokens][kLanes].
template <size_t kRows, size_t kTokens>
void tile(const float* panel, size_t steps_held, const float* x, size_t x_stride, size_t steps,
          float* lanes) {
  F sum[kRows][kTokens];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; r++)
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; t++) sum[r][t] = load(lanes + (r * kPanelTokens + t) * kLanes);
  for (size_t s = 0; s < steps; s++) {
    F operand[kTokens];
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; t++) operand[t] = load(x + t * x_stride + s * kLanes);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; r++) {
      const F weight = load(panel + (r * steps_held + s) * kWidth);
#pragma GCC unroll 8
      for (size_t t = 0; t < kTokens; t++) sum[r][t] = fma(weight, operand[t], sum[r][t]);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; r++)
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; t++) store(lanes + (r * kPanelTokens + t) * kLanes, sum[r][t]);
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

template <class Weights>
inline void fill_panel(const Weights& weights, size_t first, size_t rows, size_t first_group, size_t groups,
                       bool tail, float* panel) {
  for (size_t r = 0; r < rows; r++) {
    const typename Weights::Row row = weights.row(first + r);
    float* out = panel + r * kPanelSteps * kWidth;
    F part[kParts];
    for (size_t g = 0; g < groups; g++) {
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
  for (size_t r = 0; r < rows; r += kTileRows) {
    const size_t tile_rows = rows - r < kTileRows ? rows - r : kTileRows;
    for (size_t i = 0; i < kParts; i++) {
      const float* weights = panel + i * kPanelPart + r * kPanelSteps * kWidth;
      size_t t = 0;
      for (size_t left = tiles; left; left--) {
        const size_t n = (tokens - t + left - 1) / left;  // tiles as even as possible
        tile_for(tile_rows, n)(weights, kPanelSteps, x + t * x_stride + i * kWidth, x_stride, steps,
                               lanes + (r * kPanelTokens + t) * kLanes + i * kWidth);
        t += n;
      }
    }
  }
}

template <class Weights>
void multiply_tokens(const Weights& weights, size_t rows, const float* x, size_t x_stride, size_t tokens,
                     float* y, size_t y_stride) {
  alignas(64) float panel[kParts * kPanelPart];
  alignas(64) float lanes[kPanelRows * kPanelTokens * kLanes];
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
      std::memset(lanes, 0, n * kPanelTokens * kLanes * sizeof(float));
      size_t g = 0;
      do {
        const size_t chunk = groups - g < kChunk ? groups - g : kChunk;
        const bool tail = rest && g + chunk == groups;
        fill_panel(weights, r, n, g, chunk, tail, panel);
        multiply_panel(panel, n, operands + g * kLanes, x_stride, now, chunk, lanes);
        if (tail) multiply_panel(panel + chunk * kWidth, n, x_tail, kLanes, now, 1, lanes);
        g += chunk;
      } while (g < groups);
      for (size_t i = 0; i < now; i++) {
        for (size_t j = 0; j < n; j++) {
          F part[kParts];
          load_lanes(lanes + (j * kPanelTokens + i) * kLanes, part);
          y[(t + i) * y_stride + r + j] = sum_lanes(part);
        }
      }
    }
  }
}

// ---- the table's entries ----

void matmul_bf16(const uint16_t* w, size_t rows, size_t cols, const float* x, size_t x_stride, size_t tokens,
                 float* y, size_t y_stride) {
  if (!rows || !tokens) return;
  if (tokens == 1) return stream_bf16({{w, cols}}, rows, x, y);
  multiply_tokens(Bf16Weights{w, cols}, rows, x, x_stride, tokens, y, y_stride);
}

void matmul_f32(const float* w, size_t rows, size_t cols, const float* x, size_t x_stride, size_t tokens,
                float* y, size_t y_stride) {
  if (!rows || !tokens) return;
  const F32Weights weights{w, cols};
  if (tokens > 1) return multiply_tokens(weights, rows, x, x_stride, tokens, y, y_stride);
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
  if (tokens > 1) return multiply_tokens(weights, rows, x, x_stride, tokens, y, y_stride);
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
