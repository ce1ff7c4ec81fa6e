#include "weights.h"

#include "codec.h"

namespace k3 {

namespace {

Error defect(const std::string& what) {
  return {"E_DEFECT", "the weight tables are wrong: " + what, ""};
}

// Scratch beyond a block that is gathered from several pieces: each is read to whole pages first.
constexpr size_t kGap = 4 * kPage;

struct Shape {
  Role role;
  uint64_t rows, cols;
};

}  // namespace

size_t Weights::buffer_bytes(const Block& block) const {
  if (block.pieces == 1) {
    const Piece& piece = pieces[block.first_piece];
    return round_up(piece.offset % kPage + piece.bytes, kPage);
  }
  size_t largest = 0;
  for (uint32_t p = 0; p < block.pieces; ++p) {
    largest = std::max<size_t>(largest, pieces[block.first_piece + p].bytes);
  }
  return round_up(block.raw, kPage) + FileReader::buffer_bytes(largest) + kGap;
}

Error Weights::finish(const std::vector<FileSpec>& files) {
  if (Error error = check_blocks(files)) return error;
  if (Error error = check_tensors()) return error;
  return check_roles();
}

Error Weights::check_blocks(const std::vector<FileSpec>& files) {
  const uint32_t levels = config.layers + 1;
  layer_begin_.assign(levels + 1, 0);
  for (size_t b = 0; b < blocks.size(); ++b) {
    Block& block = blocks[b];
    const std::string name = "block " + std::to_string(b);
    if (block.layer >= levels || (b > 0 && block.layer < blocks[b - 1].layer))
      return defect(name + " is out of order");
    if (block.segments == 0 || block.first_segment > segments.size() ||
        block.segments > segments.size() - block.first_segment || block.pieces == 0 ||
        block.first_piece > pieces.size() || block.pieces > pieces.size() - block.first_piece) {
      return defect(name + " has no segments or pieces");
    }
    if (block.raw == 0 || block.raw > codec::kMaxRawBytes) return defect(name + " has a wrong size");
    if (block.codec != codec::kRaw && (block.codec != codec::kBf16 || block.pieces != 1)) {
      return defect(name + " has an unknown codec");
    }
    uint64_t stored = 0;
    for (uint32_t p = 0; p < block.pieces; ++p) {
      const Piece& piece = pieces[block.first_piece + p];
      if (piece.file >= files.size() || piece.bytes == 0 || piece.offset > files[piece.file].size ||
          piece.bytes > files[piece.file].size - piece.offset) {
        return defect(name + " leaves its file");
      }
      if (block.codec == codec::kRaw &&
          (piece.target > block.raw || piece.bytes > block.raw - piece.target)) {
        return defect(name + " has a piece that does not fit");
      }
      stored += piece.bytes;
    }
    if (stored > codec::kMaxRawBytes) return defect(name + " is too large");
    // One piece is used as it stands; several are put into a block of zeros.
    if (block.codec == codec::kRaw && block.pieces == 1 &&
        (stored != block.raw || pieces[block.first_piece].target != 0)) {
      return defect(name + " has another size than its piece");
    }
    block.stored = static_cast<uint32_t>(stored);
    layer_begin_[block.layer + 1] = static_cast<uint32_t>(b + 1);
    block_buffer_ = std::max(block_buffer_, buffer_bytes(block));
    max_raw_ = std::max<size_t>(max_raw_, block.raw);
  }
  for (uint32_t level = 1; level <= levels; ++level) {
    layer_begin_[level] = std::max(layer_begin_[level], layer_begin_[level - 1]);
  }
  return {};
}

Error Weights::check_tensors() {
  std::vector<uint32_t> next_row(tensors.size(), 0), count(tensors.size(), 0);
  for (const Block& block : blocks) {
    size_t end = 0;
    for (uint32_t s = block.first_segment; s < block.first_segment + block.segments; ++s) {
      const Segment& segment = segments[s];
      if (segment.tensor >= tensors.size()) return defect("a segment of no tensor");
      const Tensor& tensor = tensors[segment.tensor];
      if (tensor.cols == 0 || segment.rows == 0 || segment.first_row != next_row[segment.tensor] ||
          segment.rows > tensor.rows - segment.first_row) {
        return defect("rows of tensor " + std::to_string(segment.tensor) + " are missing or double");
      }
      const size_t bytes = segment.rows * tensor.row_bytes();
      if (segment.offset > block.raw || bytes > block.raw - segment.offset || segment.offset % 4 != 0) {
        return defect("a segment leaves its block");
      }
      end = std::max(end, segment.offset + bytes);
      next_row[segment.tensor] += segment.rows;
      ++count[segment.tensor];
      max_row_ = std::max(max_row_, tensor.row_bytes());
    }
    // Decoded blocks go whole to where their segments belong.
    if (end != block.raw || (block.segments == 1 && segments[block.first_segment].offset != 0)) {
      return defect("a block has another size than its segments");
    }
  }
  uint32_t first = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (next_row[t] != tensors[t].rows) return defect("tensor " + std::to_string(t) + " is not complete");
    tensors[t].first_part = first;
    first += count[t];
  }
  parts.resize(first);
  for (uint32_t b = 0; b < blocks.size(); ++b) {
    for (uint32_t s = blocks[b].first_segment; s < blocks[b].first_segment + blocks[b].segments; ++s) {
      Tensor& tensor = tensors[segments[s].tensor];
      parts[tensor.first_part + tensor.parts++] = {b, s};
    }
  }
  return {};
}

Error Weights::check_roles() {
  const Config& c = config;
  if (roles.size() != (size_t{c.layers} + 1) * kRoles) return defect("roles");
  const uint64_t kda = c.kda.width(), out = uint64_t{c.mla.heads} * c.mla.v_dim;
  for (uint32_t layer = 0; layer <= c.layers; ++layer) {
    std::vector<Shape> shapes;
    const auto vector = [&](Role role, uint64_t n) { shapes.push_back({role, 1, n}); };
    const auto matrix = [&](Role role, uint64_t rows, uint64_t cols) {
      shapes.push_back({role, rows, cols});
    };
    if (layer == c.layers) {
      for (Role role : {kOutResNorm, kOutResProj, kFinalNorm}) vector(role, c.hidden);
      matrix(kHead, c.vocab, c.hidden);
    } else {
      for (Role role : {kInputNorm, kPostNorm, kAttnResNorm, kAttnResProj, kMlpResNorm, kMlpResProj}) {
        vector(role, c.hidden);
      }
      if (c.is_mla[layer]) {
        vector(kQNorm, c.mla.q_lora), vector(kKvNorm, c.mla.kv_lora);
        matrix(kQa, c.mla.q_lora, c.hidden), matrix(kQb, uint64_t{c.mla.heads} * c.mla.query(), c.mla.q_lora);
        matrix(kKvA, c.mla.latent(), c.hidden);
        matrix(kKvB, uint64_t{c.mla.heads} * (c.mla.nope + c.mla.v_dim), c.mla.kv_lora);
        if (c.mla.gate) matrix(kG, out, c.hidden);
        matrix(kO, c.hidden, out);
      } else {
        for (Role role : {kQConv, kKConv, kVConv}) matrix(role, kda, c.kda.conv);
        vector(kALog, c.kda.heads), vector(kDtBias, kda), vector(kONorm, c.kda.dim);
        for (Role role : {kQ, kK, kV, kG}) matrix(role, kda, c.hidden);
        matrix(kO, c.hidden, kda), matrix(kFa, c.kda.dim, c.hidden), matrix(kFb, kda, c.kda.dim);
        matrix(kB, c.kda.heads, c.hidden);
      }
      if (c.is_moe[layer]) {
        vector(kRouterBias, c.experts), matrix(kRouter, c.experts, c.hidden);
        if (c.latent_norm) vector(kLatentNorm, c.latent);
        matrix(kLatentDown, c.latent, c.hidden), matrix(kLatentUp, c.hidden, c.latent);
        if (c.shared_inner) {
          matrix(kSharedGate, c.shared_inner, c.hidden), matrix(kSharedUp, c.shared_inner, c.hidden);
          matrix(kSharedDown, c.hidden, c.shared_inner);
        }
      } else {
        matrix(kGate, c.intermediate, c.hidden), matrix(kUp, c.intermediate, c.hidden);
        matrix(kDown, c.hidden, c.intermediate);
      }
    }
    for (const Shape& shape : shapes) {
      const uint32_t t = role(layer, shape.role);
      const std::string name = "role " + std::to_string(shape.role) + " of layer " + std::to_string(layer);
      if (t >= tensors.size()) return defect(name + " is missing");
      const Tensor& tensor = tensors[t];
      const uint64_t elements = uint64_t{tensor.rows} * tensor.cols;
      // Vectors may stand as one row or one column, and A_log may be longer than it is used.
      const bool fits = shape.role == kALog         ? elements >= shape.cols
                        : shape.role < kVectorRoles ? elements == shape.rows * shape.cols
                                                    : tensor.rows == shape.rows && tensor.cols == shape.cols;
      if (!fits) return defect(name + " has another shape");
      for (uint32_t p = tensor.first_part; p < tensor.first_part + tensor.parts; ++p) {
        Block& block = blocks[parts[p].block];
        if (block.layer != layer) return defect(name + " is in another layer's block");
        if (shape.role < kVectorRoles || block.segments > 1) block.kept = true;
        if (shape.role == kHead) block.head = block.segments == 1;
      }
    }
  }
  size_t at = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (b > 0 && blocks[b].layer != blocks[b - 1].layer) at = 0;
    if (blocks[b].segments > 1) blocks[b].kept = true;
    if (!blocks[b].kept) continue;
    blocks[b].kept_at = at;
    at += round_up(blocks[b].raw, 64);
    kept_bytes_ = std::max(kept_bytes_, at);
  }
  return {};
}

}  // namespace k3
