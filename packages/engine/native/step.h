// One forward pass as everything that takes part in it sees it: whether it still goes on, and what it has
// done.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace k3 {

struct Error {
  std::string
      code;  // of StageError: "E_READ", "E_DATA", "E_MEMORY", "E_INTERRUPTED", ...; empty when all is well
  std::string message;
  std::string hint;
  explicit operator bool() const { return !code.empty(); }
};

// Payload bytes (what the weights need), not the few more that aligned reads fetch.
struct Counters {
  std::atomic<uint64_t> trunk_bytes{0}, head_bytes{0}, expert_bytes{0}, embed_bytes{0};
  std::atomic<uint64_t> experts_requested{0}, experts_resident{0}, experts_read{0};
  std::atomic<uint32_t> layer{0};
  std::atomic<uint64_t> wait_ns{0};  // of the workers, for blocks or experts that were still being read
  std::atomic<uint64_t> retries{0};
};

class Step {
 public:
  Counters counters;

  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

  // The first failure is the one that is reported; what it causes elsewhere is not.
  void fail(Error error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    stopped_.store(true, std::memory_order_release);
  }
  void interrupt() { fail({"E_INTERRUPTED", "interrupted", "run the same command again"}); }

  Error error() const {
    std::lock_guard lock(mutex_);
    return error_;
  }
  void reset() {
    std::lock_guard lock(mutex_);
    error_ = {};
    stopped_.store(false, std::memory_order_release);
  }

 private:
  mutable std::mutex mutex_;
  Error error_;
  std::atomic<bool> stopped_{false};
};

}  // namespace k3
