// Where the 32 weights of (row, group) come from, as float32 vectors in the order of the lanes.
// Included after a vector_*.h, lanes.h and mxfp4.h, and after the including file has defined these:
//
// unpack_pairs(bytes, w): 32 bf16, the even columns in w's first half, the odd ones in its second.
//
// sum_pairs(w): sum_lanes of lanes in that order.
//
// unpack_mxfp4(bytes, scale, w): a group of MXFP4, in the order of its lanes.
//
// Each format has: Row, where a row starts; row(r); group(row, g, part), which unpacks a whole group;
// tail(row, part), the columns after the last whole group, padded with +0; sum(part), the sum of the lanes;
// kGroupBytes and address(row), for prefetching.
#pragma once

namespace k3 {
namespace {

// Rows of plain elements, at any address.
template <class Element>
struct PlainRows {
  using Row = const unsigned char*;
  static constexpr size_t kGroupBytes = kLanes * sizeof(Element);
  const Element* w;
  size_t cols;
  Row row(size_t r) const { return reinterpret_cast<Row>(w) + r * cols * sizeof(Element); }
  static const unsigned char* address(Row p) { return p; }

 protected:
  struct End {
    Element values[kLanes] = {};
    Row bytes() const { return reinterpret_cast<Row>(values); }
  };
  End end(Row p) const {
    End out;
    const size_t whole = cols / kLanes * kLanes;
    std::memcpy(out.values, p + whole * sizeof(Element), (cols - whole) * sizeof(Element));
    return out;
  }
};

struct Bf16Weights : PlainRows<uint16_t> {
  static void group(Row p, size_t g, F (&part)[kParts]) {
    for (size_t i = 0; i < kParts; i++)
      part[i] = widen(reinterpret_cast<const uint16_t*>(p + g * kGroupBytes) + i * kWidth);
  }
  void tail(Row p, F (&part)[kParts]) const { group(end(p).bytes(), 0, part); }
  static float sum(const F (&part)[kParts]) { return sum_lanes(part); }
};

// The same in the order that costs least to unpack; x must then be in the order of split_even_odd.
struct Bf16PairWeights : PlainRows<uint16_t> {
  static void group(Row p, size_t g, F (&part)[kParts]) { unpack_pairs(p + g * kGroupBytes, part); }
  void tail(Row p, F (&part)[kParts]) const { unpack_pairs(end(p).bytes(), part); }
  static float sum(const F (&part)[kParts]) { return sum_pairs(part); }
};

struct F32Weights : PlainRows<float> {
  static void group(Row p, size_t g, F (&part)[kParts]) {
    for (size_t i = 0; i < kParts; i++)
      part[i] = load(reinterpret_cast<const float*>(p + g * kGroupBytes) + i * kWidth);
  }
  void tail(Row p, F (&part)[kParts]) const { group(end(p).bytes(), 0, part); }
  static float sum(const F (&part)[kParts]) { return sum_lanes(part); }
};

struct Mxfp4Weights {
  struct Row {
    const uint8_t* bytes;
    const uint8_t* scales;
  };
  static constexpr size_t kGroupBytes = kGroup / 2;
  const uint8_t* packed;
  const uint8_t* scale;
  size_t cols;
  Row row(size_t r) const { return {packed + r * (cols / 2), scale + r * (cols / kGroup)}; }
  static const unsigned char* address(Row p) { return p.bytes; }
  static void group(Row p, size_t g, F (&part)[kParts]) {
    unpack_mxfp4(p.bytes + g * kGroupBytes, p.scales[g], part);
  }
  void tail(Row, F (&part)[kParts]) const {  // never of use: cols is a multiple of 32
    for (size_t i = 0; i < kParts; i++) part[i] = splat(0.0f);
  }
  static float sum(const F (&part)[kParts]) { return sum_lanes(part); }
};

inline void load_lanes(const float* p, F (&part)[kParts]) {
  for (size_t i = 0; i < kParts; i++) part[i] = load(p + i * kWidth);
}

// Asks for the bytes [first, first + n) to come into the second-level cache. May point past the end of the
// weights: a prefetch never faults, and what follows them is mostly the next block.
inline void prefetch(const unsigned char* first, size_t n) {
  for (size_t i = 0; i < n; i += 64) __builtin_prefetch(first + i, 0, 2);
}

}  // namespace
}  // namespace k3
