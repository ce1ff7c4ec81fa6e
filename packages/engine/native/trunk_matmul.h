// Products of the trunk's matrices with activations, computed block by block as the blocks arrive.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "block_stream.h"
#include "kernels/kernels.h"
#include "thread_pool.h"
#include "weights.h"

namespace k3 {

// What a worker has for itself. `buffer` holds any block; `tile` holds decoded rows, and fits into the L2
// cache.
struct Worker {
  uint8_t* buffer = nullptr;
  uint8_t* tile = nullptr;
  float* floats = nullptr;
};

// y[t * y_stride + row] = dot(matrix row, x[t * x_stride ...]) for all rows of the matrix and t < tokens.
struct Product {
  uint32_t tensor;
  const float* x;
  size_t x_stride;
  float* y;
  size_t y_stride;
};

class TrunkMatmul {
 public:
  TrunkMatmul(const Weights& weights, FileReader& files, BlockStream& stream, ThreadPool& pool, Step& step,
              const Kernels& kernels, std::vector<Worker>& workers, uint8_t* kept)
      : weights_(weights),
        files_(files),
        stream_(stream),
        pool_(pool),
        step_(step),
        kernels_(kernels),
        workers_(workers),
        kept_(kept) {}

  // Copies the blocks that a layer keeps into the kept area. False when the step has stopped.
  bool keep_layer(uint32_t layer);
  // A vector of a kept block in float32. `count` elements from its start.
  void vector(uint32_t tensor, size_t count, float* out) const;
  // A whole matrix, as it is stored but decoded, for uses that no single product covers.
  bool materialize(uint32_t tensor, uint8_t* out);
  // All the products in one parallel sweep, in the order of their blocks when the products are.
  bool multiply(std::initializer_list<Product> products, uint32_t tokens);

  static size_t tile_bytes(const Weights& weights);

 private:
  struct Task {
    const Product* product;
    TensorPart part;
  };
  void compute(const Task& task, uint32_t tokens, Worker& worker);
  void rows(const Product& product, uint32_t first_row, uint32_t rows, const uint8_t* data,
            uint32_t tokens) const;
  void in_parts(const Task& task, uint32_t tokens, Worker& worker);
  void decoded(const Task& task, const uint8_t* stored, uint32_t tokens, Worker& worker);
  bool decode_block(uint32_t block, const uint8_t* stored, uint8_t* out);
  const uint8_t* fetch(uint32_t block, Worker& worker);

  const Weights& weights_;
  FileReader& files_;
  BlockStream& stream_;
  ThreadPool& pool_;
  Step& step_;
  const Kernels& kernels_;
  std::vector<Worker>& workers_;
  uint8_t* kept_;
  std::vector<Task> tasks_;
};

}  // namespace k3
