// The trunk as it flows past: blocks are read ahead into a ring in the order of the forward pass, or by the
// worker that needs one when it is not there yet, or not at all because they are pinned. Any order of use
// makes progress.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "file_reader.h"
#include "weights.h"

namespace k3 {

class BlockStream {
 public:
  struct Options {
    uint32_t readers = 0;         // threads that read ahead
    uint32_t slots = 0;           // blocks that the ring holds
    std::vector<uint8_t> pinned;  // per block: keep it once it has been read
  };

  BlockStream(const Weights& weights, FileReader& files, Step& step)
      : weights_(weights), files_(files), step_(step) {}
  ~BlockStream();

  Error open(const Options& options);

  // A pass begins: what it will use, in order, is every block but lm_head's when the head is not wanted.
  void begin_pass(bool with_head);
  // It ended, well or not; nothing reads any more when this returns.
  void end_pass();

  // Gets a block for one worker. `stored` points to its stored bytes, in the ring or pinned; or is null when
  // the caller is to read the block itself (it then owns it until release()); or the pass has failed.
  enum class Got { memory, read_yourself, failed };
  Got acquire(uint32_t block, const uint8_t** stored);
  // The whole block into the caller's buffer (block_buffer_bytes() long), or into its own place when it is
  // pinned.
  const uint8_t* read(uint32_t block, uint8_t* buffer);
  // True when the caller may instead read it in parts: nothing keeps or checks it as a whole.
  bool may_read_in_parts(uint32_t block) const;
  // Counts bytes that the caller read itself, in parts.
  void count(uint32_t block);
  // The caller is done with it. Every acquired block is released exactly once a pass.
  void release(uint32_t block);

  uint64_t pinned_bytes() const { return pinned_stored_; }  // stored bytes of the blocks to keep
  uint64_t resident_bytes() const {
    return resident_.load(std::memory_order_relaxed);
  }  // of those read so far
  // What the pass that begins now will read: owed() is compared with what was read when it ends.
  uint64_t owed() const { return owed_; }
  size_t ring_bytes() const { return ring_.size(); }

 private:
  enum State : uint32_t { kAbsent, kReading, kReady, kResident, kDone };
  const uint8_t* load(uint32_t block, uint8_t* buffer);
  bool check(const Block& block, uint32_t index, const uint8_t* stored);
  const uint8_t* pinned_place(uint32_t block) const;
  void read_ahead();
  void settle(uint32_t block, State state);

  const Weights& weights_;
  FileReader& files_;
  Step& step_;
  Area ring_, pins_;
  size_t slot_bytes_ = 0;
  std::vector<uint64_t> pin_at_;  // per block: offset in pins_, or kUnpinned
  std::vector<std::atomic<uint32_t>> states_;
  std::vector<uint32_t> slot_of_;  // of blocks in kReady
  std::vector<uint8_t> verified_;  // per block: its checksum was right once
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::vector<uint32_t> free_slots_;  // the one used last first: it may still be in a cache
  std::vector<std::thread> readers_;
  uint32_t cursor_ = 0, end_ = 0, reading_ = 0;
  bool running_ = false, quit_ = false;
  uint64_t owed_ = 0, pinned_stored_ = 0;
  std::atomic<uint64_t> resident_{0};
};

}  // namespace k3
