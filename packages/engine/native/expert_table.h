// Where the parts of the routed experts are in their files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "file_reader.h"

namespace k3 {

inline constexpr uint32_t kMaxParts = 6;

enum class ExpertFormat : uint8_t { mxfp4 = 0, bf16 = 1, f32 = 2 };

// Where the parts of every expert are. Parts: w1 packed, w1 scale, w2 packed, w2 scale, w3 packed, w3 scale,
// or w1, w2, w3.
struct ExpertTable {
  ExpertFormat format = ExpertFormat::mxfp4;
  uint32_t parts = 0, layers = 0, experts = 0;
  std::vector<uint64_t> part_bytes;
  std::vector<double> offsets;  // [layers][experts][parts], absolute
  std::vector<uint16_t> files;  // same
  uint64_t bytes() const;       // of one expert
  size_t index(uint32_t layer, uint32_t expert, uint32_t part) const {
    return (size_t{layer} * experts + expert) * parts + part;
  }
  Error check(const std::vector<FileSpec>& specs) const;
};

}  // namespace k3
