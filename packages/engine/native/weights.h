// Where the weights of the trunk are: tensors, the blocks that hold their rows, and the bytes of files that
// make up the blocks. Filled from typed arrays; everything is checked once, so that the rest of the engine
// need not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config.h"
#include "file_reader.h"
#include "memory.h"

namespace k3 {

enum class Dtype : uint8_t { bf16 = 0, f32 = 1 };
inline constexpr size_t dtype_bytes(Dtype d) {
  return d == Dtype::bf16 ? 2 : 4;
}

// What a tensor is to its layer. TypeScript gives, for every layer, which tensor plays each role; the order
// is shared with src/tensor-roles.ts.
enum Role : uint32_t {
  kInputNorm,
  kPostNorm,
  kAttnResNorm,
  kAttnResProj,
  kMlpResNorm,
  kMlpResProj,
  kQConv,
  kKConv,
  kVConv,
  kALog,
  kDtBias,
  kONorm,
  kQNorm,
  kKvNorm,
  kRouterBias,
  kLatentNorm,
  kOutResNorm,
  kOutResProj,
  kFinalNorm,
  kVectorRoles,  // the ones above are small and kept in float32 while their layer runs; the ones below are
                 // matrices
  kQ = kVectorRoles,
  kK,
  kV,
  kG,
  kO,
  kFa,
  kFb,
  kB,
  kQa,
  kQb,
  kKvA,
  kKvB,
  kGate,
  kUp,
  kDown,
  kRouter,
  kLatentDown,
  kLatentUp,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kHead,
  kRoles
};
inline constexpr uint32_t kNone = 0xffffffff;

struct Tensor {
  uint32_t rows = 0, cols = 0;
  Dtype dtype = Dtype::bf16;
  uint32_t first_part = 0, parts = 0;  // into Weights::parts, in row order
  size_t row_bytes() const { return size_t{cols} * dtype_bytes(dtype); }
  size_t bytes() const { return rows * row_bytes(); }
};

struct Segment {  // consecutive rows of one tensor, at `offset` of the decoded block
  uint32_t tensor = 0, first_row = 0, rows = 0, offset = 0;
};

struct Piece {  // stored bytes of a block: at `target` of its buffer
  uint32_t file = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  uint32_t target = 0;
};

struct Block {
  uint32_t first_segment = 0, segments = 0;
  uint32_t first_piece = 0, pieces = 0;
  uint32_t stored = 0;  // bytes that a pass owes for it: the sum of its pieces
  uint32_t raw = 0;     // decoded
  uint32_t crc = 0;     // of the stored bytes, when checked
  uint32_t layer = 0;   // Config::layers for the model-level ones
  uint8_t codec = 0;    // of k3::codec
  bool checked = false;
  bool kept =
      false;  // copied to memory when its layer begins: vectors, and whatever shares a block with others
  bool head = false;   // lm_head, which a pass without logits does not need
  size_t kept_at = 0;  // where, in the area of kept blocks
};

struct TensorPart {
  uint32_t block = 0, segment = 0;
};

class Weights {
 public:
  Config config;
  std::vector<Tensor> tensors;
  std::vector<Segment> segments;
  std::vector<Piece> pieces;
  std::vector<Block> blocks;
  std::vector<uint32_t> roles;  // [layers + 1][kRoles]: tensor, or kNone; the last row is the model level
  std::vector<TensorPart> parts;

  uint32_t role(uint32_t layer, Role role) const { return roles[size_t{layer} * kRoles + role]; }

  // Checks all of it against the files and the config, and derives the rest. E_DEFECT names what is wrong.
  Error finish(const std::vector<FileSpec>& files);

  // The blocks of a layer (Config::layers: the model level) are blocks[layer_begin(l) .. layer_begin(l + 1)).
  uint32_t layer_begin(uint32_t layer) const { return layer_begin_[layer]; }

  size_t kept_bytes() const { return kept_bytes_; }            // of the layer that keeps most
  size_t block_buffer_bytes() const { return block_buffer_; }  // enough to read any block
  size_t max_row_bytes() const { return max_row_; }
  size_t max_raw_bytes() const { return max_raw_; }

  // How a block lies in a buffer: one piece is read in place and starts at its offset within a page.
  size_t buffer_bytes(const Block& block) const;

 private:
  Error check_blocks(const std::vector<FileSpec>& files);
  Error check_tensors();
  Error check_roles();

  std::vector<uint32_t> layer_begin_;
  size_t kept_bytes_ = 0, block_buffer_ = 0, max_row_ = 0, max_raw_ = 0;
};

}  // namespace k3
