#include "expert_store.h"

#include <algorithm>
#include <chrono>

#include "thread_pool.h"

namespace k3 {

namespace {
// One read. Several are in flight, so that a disk is kept busy and no read takes long when the step is
// stopped.
constexpr size_t kChunk = size_t{1} << 20;
}  // namespace

size_t ExpertStore::slot_bytes(const ExpertTable& table) {
  // Every part might be a run of its own, and each run begins somewhere in a page.
  return round_up(table.bytes() + size_t{table.parts} * 2 * kPage, kPage);
}

ExpertStore::~ExpertStore() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  work_.notify_all();
  for (std::thread& reader : readers_) reader.join();
}

Error ExpertStore::open(const Options& options) {
  options_ = options;
  if (table_.layers == 0) return {};
  const size_t experts = size_t{table_.layers} * table_.experts;
  if (!options.census.empty() && options.census.size() != experts) {
    return {"E_DEFECT", "the census counts other experts", ""};
  }
  slot_bytes_ = slot_bytes(table_);
  const uint32_t slots = options.cached + std::max(1u, options.in_flight);
  if (!area_.allocate(slot_bytes_ * slots)) {
    return {"E_MEMORY", "the system refused memory for the experts", "give a smaller memory budget"};
  }
  slots_.resize(slots);
  for (uint32_t s = slots; s-- > 0;) free_.push_back(s);
  slot_of_.assign(experts, -1);
  worth_.open(table_.layers, table_.experts, slots, std::move(options_.census));
  counted_.uses.assign(experts, 0);
  passing_.uses.assign(experts, 0);
  for (uint32_t r = 0; r < options.readers; ++r) {
    if (!add_thread(&readers_, [this] { read_loop(); })) return no_threads("read experts");
  }
  return {};
}

void ExpertStore::begin_pass(uint32_t tokens) {
  owed_ = 0;
  worth_.begin_pass(tokens);
  passing_.tokens = tokens;
  std::fill(passing_.uses.begin(), passing_.uses.end(), 0);
}

void ExpertStore::end_pass(bool good) {
  end_layer();
  if (!good) return;
  std::lock_guard lock(mutex_);
  counted_.tokens += passing_.tokens;
  for (size_t e = 0; e < passing_.uses.size(); ++e) counted_.uses[e] += passing_.uses[e];
}

void ExpertStore::begin_layer(uint32_t layer, std::span<const ExpertUse> uses) {
  std::lock_guard lock(mutex_);
  layer_ = layer;
  worth_.begin_layer(layer);
  uses_.assign(uses.begin(), uses.end());
  requests_.assign(uses.size(), {});
  given_ = next_start_ = 0;
  least_ = -1;
  Counters& counters = step_.counters;
  counters.experts_requested.fetch_add(uses.size(), std::memory_order_relaxed);
  for (size_t i = 0; i < uses.size(); ++i) {
    const size_t expert = size_t{layer} * table_.experts + uses[i].expert;
    worth_.chosen(expert, uses[i].recency);
    passing_.uses[expert] += uses[i].tokens;
    if (slot_of_[expert] >= 0) {
      requests_[i].slot = static_cast<uint32_t>(slot_of_[expert]);
      requests_[i].stage = Stage::ready;
      slots_[requests_[i].slot].in_use = true;
      worth_.hold(expert, requests_[i].slot);
      counters.experts_resident.fetch_add(1, std::memory_order_relaxed);
    } else {
      owed_ += table_.bytes();
    }
  }
  start_reads();
}

ExpertCensus ExpertStore::take_census() {
  std::lock_guard lock(mutex_);
  ExpertCensus taken = {0, std::vector<uint32_t>(counted_.uses.size(), 0)};
  std::swap(taken, counted_);
  return taken;
}

// Of the cached experts that this layer does not use: what the least worthy is worth. More than any when none
// may go.
double ExpertStore::least_value() {
  if (least_ < 0) least_ = worth_.least().worth;
  return least_;
}

template <typename F>
void ExpertStore::each_run(size_t expert, F&& f) const {
  const size_t first = expert * table_.parts;
  size_t at = 0;
  for (uint32_t p = 0; p < table_.parts;) {
    const uint64_t offset = static_cast<uint64_t>(table_.offsets[first + p]);
    uint64_t bytes = table_.part_bytes[p];
    uint32_t q = p + 1;
    while (q < table_.parts && table_.files[first + q] == table_.files[first + p] &&
           static_cast<uint64_t>(table_.offsets[first + q]) == offset + bytes) {
      bytes += table_.part_bytes[q++];
    }
    f(p, q, table_.files[first + p], offset, bytes, at);
    at += round_up(offset % kPage + bytes, kPage);
    p = q;
  }
}

void ExpertStore::start_reads() {
  while (next_start_ < requests_.size()) {
    if (requests_[next_start_].stage == Stage::waiting && !assign(next_start_)) return;
    ++next_start_;
  }
}

bool ExpertStore::assign(uint32_t index) {
  Request& request = requests_[index];
  const size_t expert = size_t{layer_} * table_.experts + uses_[index].expert;
  if (files_.fast() && cached_count_ == options_.cached && worth_.of(expert) <= least_value()) {
    request.stage = Stage::ready;  // to be streamed
    request.slot = kStream;
    return true;
  }
  if (free_.empty()) return false;
  request.slot = free_.back();
  free_.pop_back();
  Slot& slot = slots_[request.slot];
  slot.expert = static_cast<int64_t>(expert);
  slot.in_use = true;
  request.stage = Stage::reading;
  each_run(expert, [&](uint32_t, uint32_t, uint32_t file, uint64_t offset, uint64_t bytes, size_t at) {
    // Cut at whole pages of the file, so that every chunk lands where the run puts it.
    uint64_t begin = offset;
    const uint64_t end = offset + bytes, base = offset / kPage * kPage;
    while (begin < end) {
      const uint64_t stop = std::min(end, (begin + kChunk) / kPage * kPage);
      queue_.push_back(
          {index, request.slot, file, begin, stop - begin, at + (begin / kPage * kPage - base), slot.fresh});
      ++request.pending;
      begin = stop;
    }
  });
  slot.fresh = false;
  work_.notify_all();
  return true;
}

void ExpertStore::read_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return quit_ || !queue_.empty(); });
    if (quit_) return;
    const Chunk chunk = queue_.front();
    queue_.pop_front();
    ++reading_;
    lock.unlock();
    uint8_t* to = area_.data() + chunk.slot * slot_bytes_ + chunk.at;
    const auto target = chunk.fresh ? FileReader::Target::fresh : FileReader::Target::used;
    const bool good =
        !step_.stopped() && files_.read(chunk.file, chunk.offset, chunk.bytes, to, step_, target);
    if (good) step_.counters.expert_bytes.fetch_add(chunk.bytes, std::memory_order_relaxed);
    lock.lock();
    --reading_;
    Request& request = requests_[chunk.request];
    if (--request.pending == 0 && good) request.stage = Stage::ready;
    news_.notify_all();
  }
}

bool ExpertStore::next(std::vector<Ready>* ready) {
  ready->clear();
  std::unique_lock lock(mutex_);
  if (given_ == requests_.size() || step_.stopped()) return false;
  const auto any = [this] {
    for (const Request& request : requests_) {
      if (request.stage == Stage::ready) return true;
    }
    return false;
  };
  if (!any()) {
    const auto begun = std::chrono::steady_clock::now();
    news_.wait(lock, [&] { return step_.stopped() || any(); });
    step_.counters.wait_ns.fetch_add((std::chrono::steady_clock::now() - begun).count(),
                                     std::memory_order_relaxed);
  }
  if (step_.stopped()) return false;
  for (uint32_t i = 0; i < requests_.size(); ++i) {
    Request& request = requests_[i];
    if (request.stage != Stage::ready) continue;
    request.stage = Stage::given;
    ++given_;
    Ready& out = ready->emplace_back();
    out.index = i;
    out.stream = request.slot == kStream;
    if (out.stream) continue;
    const uint8_t* base = area_.data() + request.slot * slot_bytes_;
    const size_t expert = size_t{layer_} * table_.experts + uses_[i].expert;
    each_run(expert, [&](uint32_t p, uint32_t q, uint32_t, uint64_t offset, uint64_t, size_t at) {
      const uint8_t* data = base + at + offset % kPage;
      for (; p < q; ++p) {
        out.part[p] = data;
        data += table_.part_bytes[p];
      }
    });
  }
  return true;
}

void ExpertStore::done(const std::vector<Ready>& batch) {
  std::lock_guard lock(mutex_);
  for (const Ready& ready : batch) settle(ready);
  start_reads();
}

void ExpertStore::settle(const Ready& ready) {
  const uint32_t index = requests_[ready.index].slot;
  if (index == kStream) return;
  Slot& slot = slots_[index];
  const size_t expert = static_cast<size_t>(slot.expert);
  slot.in_use = false;
  if (slot.cached) return worth_.unhold(expert, index);
  bool stays = false;
  if (cached_count_ < options_.cached) {
    ++cached_count_;
    stays = true;
  } else if (options_.cached > 0) {
    const ExpertWorth::Least least = worth_.least();
    stays = least.worth < worth_.of(expert);
    if (stays) evict(least.slot);
  }
  if (!stays) return leave(index);
  slot.cached = true;
  slot_of_[expert] = static_cast<int32_t>(index);
  worth_.keep(expert, index);
}

void ExpertStore::evict(uint32_t index) {
  const size_t expert = static_cast<size_t>(slots_[index].expert);
  slot_of_[expert] = -1;
  worth_.drop(expert, index);
  leave(index);
}

void ExpertStore::leave(uint32_t index) {
  slots_[index] = {.fresh = false};
  free_.push_back(index);
}

void ExpertStore::end_layer() {
  std::unique_lock lock(mutex_);
  queue_.clear();
  news_.wait(lock, [this] { return reading_ == 0; });
  // After a failure or an interruption some were not given out, or not given back: drop what is not whole.
  for (uint32_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i].stage == Stage::waiting || requests_[i].slot == kStream) continue;
    Slot& slot = slots_[requests_[i].slot];
    if (!slot.in_use) continue;
    slot.in_use = false;
    if (slot.cached) {
      worth_.unhold(static_cast<size_t>(slot.expert), requests_[i].slot);
    } else {
      leave(requests_[i].slot);
    }
  }
  requests_.clear();
  uses_.clear();
}

}  // namespace k3
