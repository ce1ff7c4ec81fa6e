// The routed experts: read straight from the shards as soon as the router has spoken, kept where the budget
// has room.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "expert_table.h"
#include "expert_worth.h"
#include "file_reader.h"

namespace k3 {

// One expert that a pass needs, and how much the tokens of the pass say for its return: the sum over the
// tokens that chose it of 1/2 to the power of the number of tokens that came after.
struct ExpertUse {
  uint32_t expert = 0;
  float recency = 0;
  uint32_t tokens = 0;  // of the pass that chose it
};

// How often experts were chosen, over many tokens.
struct ExpertCensus {
  uint64_t tokens = 0;
  std::vector<uint32_t> uses;  // [layers][experts]
};

class ExpertStore {
 public:
  struct Options {
    uint32_t readers = 0;
    uint32_t cached = 0;     // experts that stay
    uint32_t in_flight = 0;  // slots beyond those, for experts that are on their way through; at least 1
    // [layers][experts]: uses per token in earlier runs, or empty.
    std::vector<float> census;
  };
  struct Ready {
    uint32_t index = 0;   // into the uses of begin_layer
    bool stream = false;  // not in memory: the workers read it in parts, tile by tile
    const uint8_t* part[kMaxParts] = {};
  };

  ExpertStore(const ExpertTable& table, FileReader& files, Step& step)
      : table_(table), files_(files), step_(step) {}
  ~ExpertStore();
  Error open(const Options& options);
  static size_t slot_bytes(const ExpertTable& table);

  void begin_pass(uint32_t tokens);
  // What a pass that did not come to its end has chosen does not count.
  void end_pass(bool good);

  // Asks for all experts of a layer at once. `layer` counts the layers that have experts.
  void begin_layer(uint32_t layer, std::span<const ExpertUse> uses);
  // Waits until some that were not given out yet are at hand, and gives those. False when there are no more,
  // or when the step has stopped.
  bool next(std::vector<Ready>* ready);
  // All of a batch of next() are computed: they stay if they are worth more than what would have to go, or
  // else leave.
  void done(const std::vector<Ready>& ready);
  void end_layer();

  uint64_t owed() const { return owed_; }
  // What whole passes chose since the last call; from any thread.
  ExpertCensus take_census();
  uint32_t resident() const { return cached_count_; }

 private:
  static constexpr uint32_t kStream = 0xffffffff;
  enum class Stage : uint8_t { waiting, reading, ready, given };
  struct Request {
    Stage stage = Stage::waiting;
    uint32_t slot = 0;
    uint32_t pending = 0;  // chunks still being read; guarded by mutex_
  };
  struct Slot {
    int64_t expert = -1;  // layer * experts + expert, or -1
    bool cached = false;
    bool in_use = false;
    bool fresh = true;  // its memory was never written
  };
  struct Chunk {
    uint32_t request, slot, file;
    uint64_t offset;
    size_t bytes, at;  // `at`: page-aligned place in the slot
    bool fresh;
  };

  void start_reads();             // mutex_ held
  bool assign(uint32_t request);  // mutex_ held
  template <typename F>
  void each_run(size_t expert, F&& f) const;
  double least_value();  // mutex_ held, as for the next three
  void settle(const Ready& ready);
  void evict(uint32_t slot);
  void leave(uint32_t slot);  // empties a slot that is not in the cache
  void read_loop();

  const ExpertTable& table_;
  FileReader& files_;
  Step& step_;
  Area area_;
  size_t slot_bytes_ = 0;
  Options options_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::vector<int32_t> slot_of_;  // per expert of every layer: its cached slot, or -1
  ExpertWorth worth_;
  ExpertCensus counted_, passing_;  // of whole passes, and of the one at work
  uint32_t cached_count_ = 0;

  uint32_t layer_ = 0;
  std::vector<ExpertUse> uses_;
  std::vector<Request> requests_;
  uint32_t given_ = 0, next_start_ = 0;
  double least_ = -1;  // least_value() of this layer, once it is known
  uint64_t owed_ = 0;
  std::mutex mutex_;
  std::condition_variable work_, news_;
  std::deque<Chunk> queue_;
  uint32_t reading_ = 0;
  bool quit_ = false;
  std::vector<std::thread> readers_;
};

}  // namespace k3
