#include "block_stream.h"

#include <chrono>
#include <cstring>

#include "codec.h"
#include "thread_pool.h"

namespace k3 {

namespace {
constexpr uint64_t kUnpinned = ~uint64_t{0};
}

BlockStream::~BlockStream() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  for (std::thread& reader : readers_) reader.join();
}

Error BlockStream::open(const Options& options) {
  const size_t count = weights_.blocks.size();
  if (options.pinned.size() != count) return {"E_DEFECT", "pinned flags for another number of blocks", ""};
  states_ = std::vector<std::atomic<uint32_t>>(count);
  slot_of_.assign(count, 0);
  verified_.assign(count, 0);
  pin_at_.assign(count, kUnpinned);
  uint64_t pins = 0;
  for (size_t b = 0; b < count; ++b) {
    if (!options.pinned[b]) continue;
    pin_at_[b] = pins;
    pins += round_up(weights_.buffer_bytes(weights_.blocks[b]), kPage);
    pinned_stored_ += weights_.blocks[b].stored;
  }
  slot_bytes_ = round_up(weights_.block_buffer_bytes(), kPage);
  // Small pages: what is pinned is what is planned, to the page. Huge ones would be a few per cent faster to
  // go through.
  if (!pins_.allocate(pins, Area::Pages::small) || !ring_.allocate(slot_bytes_ * options.slots)) {
    return {"E_MEMORY", "the system refused memory for the trunk", "give a smaller memory budget"};
  }
  for (uint32_t slot = options.slots; slot-- > 0;) free_slots_.push_back(slot);
  for (uint32_t r = 0; r < options.readers; ++r) {
    if (!add_thread(&readers_, [this] { read_ahead(); })) return no_threads("read the trunk ahead");
  }
  return {};
}

void BlockStream::begin_pass(bool with_head) {
  std::lock_guard lock(mutex_);
  owed_ = 0;
  end_ = 0;
  for (uint32_t b = 0; b < states_.size(); ++b) {
    const bool wanted = with_head || !weights_.blocks[b].head;
    if (states_[b].load(std::memory_order_relaxed) != kResident) {
      states_[b].store(kAbsent, std::memory_order_relaxed);
      if (wanted) owed_ += weights_.blocks[b].stored;
    }
    if (wanted) end_ = b + 1;
  }
  cursor_ = 0;
  running_ = true;
  wake_.notify_all();
}

void BlockStream::end_pass() {
  std::unique_lock lock(mutex_);
  running_ = false;
  idle_.wait(lock, [this] { return reading_ == 0; });
  // After a failure blocks may still lie in the ring.
  for (size_t b = 0; b < states_.size(); ++b) {
    if (states_[b].load(std::memory_order_relaxed) != kReady) continue;
    states_[b].store(kAbsent, std::memory_order_relaxed);
    free_slots_.push_back(slot_of_[b]);
  }
}

BlockStream::Got BlockStream::acquire(uint32_t block, const uint8_t** stored) {
  std::atomic<uint32_t>& state = states_[block];
  for (;;) {
    uint32_t now = state.load(std::memory_order_acquire);
    if (now == kResident) {
      *stored = pinned_place(block);
      return Got::memory;
    }
    if (now == kReady) {
      *stored = ring_.data() + slot_of_[block] * slot_bytes_;
      const Block& b = weights_.blocks[block];
      if (b.pieces == 1) *stored += weights_.pieces[b.first_piece].offset % kPage;
      return Got::memory;
    }
    if (step_.stopped()) return Got::failed;
    if (now == kAbsent) {
      if (state.compare_exchange_strong(now, kReading, std::memory_order_acq_rel)) return Got::read_yourself;
    } else if (now == kReading) {
      const auto begun = std::chrono::steady_clock::now();
      state.wait(kReading, std::memory_order_acquire);
      step_.counters.wait_ns.fetch_add((std::chrono::steady_clock::now() - begun).count(),
                                       std::memory_order_relaxed);
    } else {
      step_.fail({"E_DEFECT", "block " + std::to_string(block) + " is used twice in a pass", ""});
      return Got::failed;
    }
  }
}

const uint8_t* BlockStream::pinned_place(uint32_t block) const {
  const Block& b = weights_.blocks[block];
  const size_t skip = b.pieces == 1 ? weights_.pieces[b.first_piece].offset % kPage : 0;
  return pins_.data() + pin_at_[block] + skip;
}

bool BlockStream::may_read_in_parts(uint32_t block) const {
  const Block& b = weights_.blocks[block];
  return pin_at_[block] == kUnpinned && b.codec == codec::kRaw && b.pieces == 1 && b.segments == 1 &&
         (!b.checked || verified_[block]);
}

const uint8_t* BlockStream::read(uint32_t block, uint8_t* buffer) {
  const bool pinned = pin_at_[block] != kUnpinned;
  const uint8_t* stored = load(block, pinned ? pins_.data() + pin_at_[block] : buffer);
  if (stored && pinned) {
    resident_.fetch_add(weights_.blocks[block].stored, std::memory_order_relaxed);
    settle(block, kResident);
  }
  if (!stored) settle(block, kDone);  // whoever waits for it finds the step stopped
  return stored;
}

void BlockStream::release(uint32_t block) {
  const uint32_t now = states_[block].load(std::memory_order_acquire);
  if (now == kReady) {
    std::lock_guard lock(mutex_);
    free_slots_.push_back(slot_of_[block]);
    states_[block].store(kDone, std::memory_order_release);
    if (running_ && !files_.fast()) wake_.notify_one();
  } else if (now == kReading) {
    settle(block, kDone);
    if (!files_.fast()) wake_.notify_one();  // reading ahead may be worth while (again)
  }
}

void BlockStream::settle(uint32_t block, State state) {
  states_[block].store(state, std::memory_order_release);
  states_[block].notify_all();
}

void BlockStream::count(uint32_t block) {
  const Block& b = weights_.blocks[block];
  (b.head ? step_.counters.head_bytes : step_.counters.trunk_bytes)
      .fetch_add(b.stored, std::memory_order_relaxed);
}

// Reads the stored bytes of a block and checks them; null when the step has failed.
const uint8_t* BlockStream::load(uint32_t index, uint8_t* buffer) {
  const Block& block = weights_.blocks[index];
  const uint8_t* stored = nullptr;
  if (block.pieces == 1) {
    const Piece& piece = weights_.pieces[block.first_piece];
    const auto target = pin_at_[index] == kUnpinned ? FileReader::Target::used : FileReader::Target::fresh;
    stored = files_.read(piece.file, piece.offset, piece.bytes, buffer, step_, target);
  } else {
    // Small tensors from several places: each read to whole pages behind the block, then moved to its place.
    // What lies between segments is zero, as in a packed trunk.
    uint8_t* bounce = buffer + round_up(block.raw, kPage);
    std::memset(buffer, 0, block.raw);
    for (uint32_t p = block.first_piece; p < block.first_piece + block.pieces; ++p) {
      const Piece& piece = weights_.pieces[p];
      const uint8_t* data = files_.read(piece.file, piece.offset, piece.bytes, bounce, step_);
      if (!data) return nullptr;
      std::memcpy(buffer + piece.target, data, piece.bytes);
    }
    stored = buffer;
  }
  if (!stored || !check(block, index, stored)) return nullptr;
  count(index);
  return stored;
}

bool BlockStream::check(const Block& block, uint32_t index, const uint8_t* stored) {
  if (!block.checked || verified_[index]) return true;
  if (codec::crc32(stored, block.stored) != block.crc) {
    step_.fail({"E_DATA", "block " + std::to_string(index) + " of the trunk does not match its checksum",
                "the trunk's data file is damaged: remove trunk.json beside it and pack again"});
    return false;
  }
  verified_[index] = 1;  // one thread has the block in kReading, so nobody else writes here
  return true;
}

void BlockStream::read_ahead() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] {
      return quit_ ||
             (running_ && cursor_ < end_ && !free_slots_.empty() && !files_.fast() && !step_.stopped());
    });
    if (quit_) return;
    // The next block that nobody has begun.
    uint32_t block = end_;
    while (cursor_ < end_ && block == end_) {
      uint32_t absent = kAbsent;
      if (states_[cursor_].compare_exchange_strong(absent, kReading, std::memory_order_acq_rel))
        block = cursor_;
      ++cursor_;
    }
    if (block == end_) continue;
    const bool pinned = pin_at_[block] != kUnpinned;
    uint32_t slot = 0;
    if (!pinned) {
      slot = free_slots_.back();
      free_slots_.pop_back();
    }
    ++reading_;
    lock.unlock();
    uint8_t* buffer = pinned ? pins_.data() + pin_at_[block] : ring_.data() + slot * slot_bytes_;
    const bool good = load(block, buffer) != nullptr;
    slot_of_[block] = slot;
    if (good && pinned) resident_.fetch_add(weights_.blocks[block].stored, std::memory_order_relaxed);
    settle(block, !good ? kDone : pinned ? kResident : kReady);
    lock.lock();
    if (!good && !pinned) free_slots_.push_back(slot);
    if (--reading_ == 0) idle_.notify_all();
  }
}

}  // namespace k3
