// A model that is open: everything native that belongs to it, and the thread on which its passes run, one at
// a time.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "forward.h"

namespace k3 {

// Where all weights of a model are.
struct EngineModel {
  Weights weights;
  ExpertTable experts;
  std::vector<FileSpec> files;
  Embedding embedding;
};

struct EngineOptions {
  BlockStream::Options stream;
  ExpertStore::Options store;
  uint32_t threads = 1;
  uint32_t chunk = 1;
  bool direct = true;
  FileReader::Pace pace = FileReader::Pace::measured;
  const Kernels* kernels = nullptr;
};

// What the areas of an engine take, for the plan.
struct EngineSizes {
  uint64_t activations = 0;            // for one token
  uint64_t activations_per_token = 0;  // and for each more
  uint64_t per_worker = 0;
  uint64_t ring_slot = 0;
  uint64_t expert_slot = 0;
  uint64_t state_fixed = 0;     // of a session
  uint64_t state_position = 0;  // of a session, per position
  uint64_t tables = 0;          // block, segment and expert tables
};
EngineSizes measure(const Weights& weights, const ExpertTable& experts);

class Engine {
 public:
  Engine(EngineModel model, EngineOptions options);
  ~Engine();

  Error open();
  // Stops the pass that runs, waits for the thread, and frees all memory but the states.
  void close();
  // The freeing alone, which may take a second: as the last job, on the engine's own thread.
  void free_memory();
  bool closed() const { return closed_; }

  // Jobs run one after the other on the engine's own thread.
  void post(std::function<void()> job);
  Error forward(std::span<const int32_t> ids, SessionState& state, const PassOptions& options,
                PassResult* result);

  Step step;
  const Config& config() const { return model_.weights.config; }
  const EngineOptions& options() const { return options_; }
  uint64_t pinned_bytes() const { return stream_ ? stream_->pinned_bytes() : 0; }
  uint64_t pinned_resident() const { return stream_ ? stream_->resident_bytes() : 0; }
  // Not after free_memory().
  ExpertCensus take_census() { return store_ ? store_->take_census() : ExpertCensus{}; }
  uint32_t experts_resident() const { return store_ ? store_->resident() : 0; }
  uint32_t buffered_files() const { return files_ ? files_->buffered_files() : 0; }
  bool reads_are_fast() const { return files_ && files_->fast(); }

 private:
  void work();

  EngineModel model_;
  EngineOptions options_;
  std::unique_ptr<FileReader> files_;
  std::unique_ptr<BlockStream> stream_;
  std::unique_ptr<ExpertStore> store_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Forward> forward_;
  std::vector<std::thread> threads_;  // one, once it is open
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool quit_ = false;
  bool closed_ = false;
};

}  // namespace k3
