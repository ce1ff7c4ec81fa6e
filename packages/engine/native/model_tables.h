// Where all weights are, as JavaScript lays it out in flat arrays (src/native.ts), and the checked model made
// from it: apart, so that half a million numbers are neither copied nor checked on the event loop.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine.h"

namespace k3 {

// Spans lie in the memory of JavaScript's arrays, which must stay as they are until build_model() is done.
struct ModelTables {
  Config config;
  std::vector<FileSpec> files;
  std::span<const uint32_t> tensors;   // rows, cols, dtype
  std::span<const uint32_t> segments;  // tensor, first row, rows, offset
  std::span<const uint32_t> pieces;    // file, bytes, target
  std::span<const double> piece_offsets;
  // first segment, segments, first piece, pieces, raw, crc, layer, codec | checked << 8
  std::span<const uint32_t> blocks;
  std::span<const uint32_t> roles;
  ExpertTable experts;  // its format and counts
  std::span<const double> expert_part_bytes;
  std::span<const double> expert_offsets;
  std::span<const uint16_t> expert_files;
  Embedding embedding;
};

// Copies and checks the tables; an error for whatever is not as it must be.
Error build_model(ModelTables tables, EngineModel* model);

}  // namespace k3
