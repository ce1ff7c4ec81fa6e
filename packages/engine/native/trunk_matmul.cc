#include "trunk_matmul.h"

#include <cstring>
#include <numeric>

#include "codec.h"

namespace k3 {

namespace {

// What a worker decodes or reads at once: it stays in the L2 cache together with the activations.
constexpr size_t kTile = size_t{128} << 10;
constexpr size_t kPartRead = size_t{512} << 10;

// Rows of a tile: whole chunks of the codec, so that no chunk is decoded twice, if that is possible within
// the size.
uint32_t tile_rows(const Tensor& tensor) {
  const size_t step = codec::kChunkValues / std::gcd<size_t>(codec::kChunkValues, tensor.cols);
  const size_t fit = std::max<size_t>(1, kTile / tensor.row_bytes());
  return static_cast<uint32_t>(fit >= step ? fit / step * step : std::min(step, 2 * fit));
}

}  // namespace

size_t TrunkMatmul::tile_bytes(const Weights& weights) {
  // A tile that does not begin at a chunk is decoded with the rest of its first and last chunk.
  return round_up(2 * std::max(kTile, weights.max_row_bytes()), kPage) + 2 * codec::kChunkBytes;
}

const uint8_t* TrunkMatmul::fetch(uint32_t block, Worker& worker) {
  const uint8_t* stored = nullptr;
  switch (stream_.acquire(block, &stored)) {
    case BlockStream::Got::memory:
      return stored;
    case BlockStream::Got::read_yourself:
      stored = stream_.read(block, worker.buffer);
      if (!stored) stream_.release(block);
      return stored;
    case BlockStream::Got::failed:
      return nullptr;
  }
  return nullptr;
}

bool TrunkMatmul::decode_block(uint32_t index, const uint8_t* stored, uint8_t* out) {
  const Block& block = weights_.blocks[index];
  if (block.codec == codec::kRaw) {
    std::memcpy(out, stored, block.raw);
    return true;
  }
  codec::BlockView view;
  if (codec::parse_block(stored, block.stored, block.raw, &view) &&
      codec::decode(view, 0, view.chunks, reinterpret_cast<uint16_t*>(out))) {
    return true;
  }
  step_.fail({"E_DATA", "block " + std::to_string(index) + " of the trunk cannot be decoded",
              "the trunk's data file is damaged: remove trunk.json beside it and pack again"});
  return false;
}

bool TrunkMatmul::keep_layer(uint32_t layer) {
  std::vector<uint32_t> kept;
  for (uint32_t b = weights_.layer_begin(layer); b < weights_.layer_begin(layer + 1); ++b) {
    if (weights_.blocks[b].kept) kept.push_back(b);
  }
  pool_.run(static_cast<uint32_t>(kept.size()), [&](uint32_t task, uint32_t worker) {
    const uint8_t* stored = fetch(kept[task], workers_[worker]);
    if (!stored) return;
    decode_block(kept[task], stored, kept_ + weights_.blocks[kept[task]].kept_at);
    stream_.release(kept[task]);
  });
  return !step_.stopped();
}

void TrunkMatmul::vector(uint32_t index, size_t count, float* out) const {
  const Tensor& tensor = weights_.tensors[index];
  size_t at = 0;
  for (uint32_t p = tensor.first_part; p < tensor.first_part + tensor.parts && at < count; ++p) {
    const Segment& segment = weights_.segments[weights_.parts[p].segment];
    const uint8_t* data = kept_ + weights_.blocks[weights_.parts[p].block].kept_at + segment.offset;
    const size_t n = std::min<size_t>(count - at, size_t{segment.rows} * tensor.cols);
    if (tensor.dtype == Dtype::bf16) {
      kernels_.widen_bf16(reinterpret_cast<const uint16_t*>(data), n, out + at);
    } else {
      std::memcpy(out + at, data, n * sizeof(float));
    }
    at += n;
  }
}

bool TrunkMatmul::materialize(uint32_t index, uint8_t* out) {
  const Tensor& tensor = weights_.tensors[index];
  pool_.run(tensor.parts, [&](uint32_t task, uint32_t worker) {
    const TensorPart part = weights_.parts[tensor.first_part + task];
    const Block& block = weights_.blocks[part.block];
    const Segment& segment = weights_.segments[part.segment];
    uint8_t* to = out + segment.first_row * tensor.row_bytes();
    if (block.kept) {
      std::memcpy(to, kept_ + block.kept_at + segment.offset, segment.rows * tensor.row_bytes());
    } else if (const uint8_t* stored = fetch(part.block, workers_[worker])) {
      decode_block(part.block, stored, to);  // not kept: the segment is the whole block
      stream_.release(part.block);
    }
  });
  return !step_.stopped();
}

bool TrunkMatmul::multiply(std::initializer_list<Product> products, uint32_t tokens) {
  tasks_.clear();
  for (const Product& product : products) {
    const Tensor& tensor = weights_.tensors[product.tensor];
    for (uint32_t p = 0; p < tensor.parts; ++p)
      tasks_.push_back({&product, weights_.parts[tensor.first_part + p]});
  }
  pool_.run(static_cast<uint32_t>(tasks_.size()), [&](uint32_t task, uint32_t worker) {
    if (!step_.stopped()) compute(tasks_[task], tokens, workers_[worker]);
  });
  return !step_.stopped();
}

void TrunkMatmul::compute(const Task& task, uint32_t tokens, Worker& worker) {
  const Block& block = weights_.blocks[task.part.block];
  const Segment& segment = weights_.segments[task.part.segment];
  if (block.kept) {
    rows(*task.product, segment.first_row, segment.rows, kept_ + block.kept_at + segment.offset, tokens);
    return;
  }
  const uint8_t* stored = nullptr;
  switch (stream_.acquire(task.part.block, &stored)) {
    case BlockStream::Got::failed:
      return;
    case BlockStream::Got::read_yourself:
      if (stream_.may_read_in_parts(task.part.block)) {
        in_parts(task, tokens, worker);
        stream_.release(task.part.block);
        return;
      }
      stored = stream_.read(task.part.block, worker.buffer);
      break;
    case BlockStream::Got::memory:
      break;
  }
  if (stored) {
    if (block.codec == codec::kRaw) {
      rows(*task.product, segment.first_row, segment.rows, stored + segment.offset, tokens);
    } else {
      decoded(task, stored, tokens, worker);
    }
  }
  stream_.release(task.part.block);
}

void TrunkMatmul::rows(const Product& product, uint32_t first_row, uint32_t count, const uint8_t* data,
                       uint32_t tokens) const {
  const Tensor& tensor = weights_.tensors[product.tensor];
  float* y = product.y + first_row;
  if (tensor.dtype == Dtype::bf16) {
    kernels_.matmul_bf16(reinterpret_cast<const uint16_t*>(data), count, tensor.cols, product.x,
                         product.x_stride, tokens, y, product.y_stride);
  } else {
    kernels_.matmul_f32(reinterpret_cast<const float*>(data), count, tensor.cols, product.x, product.x_stride,
                        tokens, y, product.y_stride);
  }
}

// Reads half a megabyte, multiplies it while it is in the cache, and reads the next over it.
void TrunkMatmul::in_parts(const Task& task, uint32_t tokens, Worker& worker) {
  const Block& block = weights_.blocks[task.part.block];
  const Piece& piece = weights_.pieces[block.first_piece];
  const Segment& segment = weights_.segments[task.part.segment];
  const size_t row_bytes = weights_.tensors[segment.tensor].row_bytes();
  const uint32_t step = static_cast<uint32_t>(std::max<size_t>(1, kPartRead / row_bytes));
  for (uint32_t row = 0; row < segment.rows; row += step) {
    const uint32_t count = std::min(step, segment.rows - row);
    const uint8_t* data =
        files_.read(piece.file, piece.offset + row * row_bytes, count * row_bytes, worker.buffer, step_);
    if (!data) return;
    rows(*task.product, segment.first_row + row, count, data, tokens);
  }
  stream_.count(task.part.block);
}

void TrunkMatmul::decoded(const Task& task, const uint8_t* stored, uint32_t tokens, Worker& worker) {
  const Block& block = weights_.blocks[task.part.block];
  const Segment& segment = weights_.segments[task.part.segment];
  const Tensor& tensor = weights_.tensors[segment.tensor];
  codec::BlockView view;
  bool good = codec::parse_block(stored, block.stored, block.raw, &view);
  const uint32_t step = tile_rows(tensor);
  for (uint32_t row = 0; good && row < segment.rows; row += step) {
    const uint32_t count = std::min(step, segment.rows - row);
    const size_t begin = size_t{row} * tensor.cols, end = begin + size_t{count} * tensor.cols;
    const size_t first = begin / codec::kChunkValues;
    const size_t chunks = (end + codec::kChunkValues - 1) / codec::kChunkValues - first;
    uint16_t* tile = reinterpret_cast<uint16_t*>(worker.tile);
    good = codec::decode(view, first, chunks, tile);
    if (!good) break;
    const uint16_t* data = tile + (begin - first * codec::kChunkValues);
    rows(*task.product, segment.first_row + row, count, reinterpret_cast<const uint8_t*>(data), tokens);
  }
  if (!good) {
    step_.fail({"E_DATA", "block " + std::to_string(task.part.block) + " of the trunk cannot be decoded",
                "the trunk's data file is damaged: remove trunk.json beside it and pack again"});
  }
}

}  // namespace k3
