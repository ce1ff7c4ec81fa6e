// Where all weights are, as JavaScript lays it out in flat arrays (src/native.ts), and the checked model made
// from it. Apart from reading them so that half a million numbers need not be checked on the event loop.
#pragma once

#include <cstdint>
#include <vector>

#include "engine.h"

namespace k3 {

struct ModelTables {
  Config config;
  std::vector<FileSpec> files;
  std::vector<uint32_t> tensors;   // rows, cols, dtype
  std::vector<uint32_t> segments;  // tensor, first row, rows, offset
  std::vector<uint32_t> pieces;    // file, bytes, target
  std::vector<double> piece_offsets;
  // first segment, segments, first piece, pieces, raw, crc, layer, codec | checked << 8
  std::vector<uint32_t> blocks;
  std::vector<uint32_t> roles;
  ExpertTable experts;  // without part_bytes and parts
  std::vector<double> expert_part_bytes;
  Embedding embedding;
};

// Takes the tables over; an error for whatever is not as it must be.
Error build_model(ModelTables tables, EngineModel* model);

}  // namespace k3
