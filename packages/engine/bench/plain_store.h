// What the store of experts must decide, without anything that makes it quick.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "expert_store.h"

namespace k3 {

// The rule by its words, one slot after the other. Slots are given out as the store gives them: the last one
// that became free first.
class PlainStore {
 public:
  struct Slot {
    int64_t expert = -1;
    bool cached = false, in_use = false;
  };
  PlainStore(uint32_t layers, uint32_t experts, uint32_t cached, uint32_t in_flight,
             std::vector<float> census)
      : layers_(layers), experts_(experts), most_(cached), census_(std::move(census)) {
    slots_.resize(cached + in_flight);
    for (uint32_t s = cached + in_flight; s-- > 0;) free_.push_back(s);
    slot_of_.assign(size_t{layers} * experts, -1);
    count_.assign(size_t{layers} * experts, 0);
    when_.assign(size_t{layers} * experts, 0);
  }
  void begin_pass(uint32_t tokens) { clock_ += tokens; }
  // Per use: its slot, or -1 while it waits for one.
  std::vector<int64_t> begin_layer(uint32_t layer, const std::vector<ExpertUse>& uses) {
    layer_ = layer;
    uses_ = uses;
    at_.assign(uses.size(), -1);
    for (size_t i = 0; i < uses.size(); ++i) {
      const size_t e = size_t{layer} * experts_ + uses[i].expert;
      count_[e] = std::ldexp(count_[e], -static_cast<int>(clock_ - when_[e])) + uses[i].recency;
      when_[e] = clock_;
      if (slot_of_[e] < 0) continue;
      at_[i] = slot_of_[e];
      slots_[static_cast<size_t>(at_[i])].in_use = true;
    }
    next_ = 0;
    start();
    return at_;
  }
  std::vector<int64_t> done(const std::vector<uint32_t>& batch) {
    for (uint32_t i : batch) {
      const auto index = static_cast<size_t>(at_[i]);
      slots_[index].in_use = false;
      if (!slots_[index].cached) admit(index);
    }
    start();
    return at_;
  }

 private:
  double value(size_t e) const {
    const uint32_t layer = static_cast<uint32_t>(e / experts_);
    const uint32_t distance = layer > layer_ ? layer - layer_ : layer + layers_ - layer_;
    const double recent = std::ldexp(static_cast<double>(count_[e]), -static_cast<int>(clock_ - when_[e]));
    return (recent + (census_.empty() ? 0 : census_[e])) / distance;
  }
  void admit(size_t index) {
    size_t leaving = index;
    if (held_ < most_) {
      ++held_;
    } else {
      double least = value(static_cast<size_t>(slots_[index].expert));
      for (size_t s = 0; s < slots_.size(); ++s) {
        if (!slots_[s].cached || slots_[s].in_use) continue;
        const double v = value(static_cast<size_t>(slots_[s].expert));
        if (v < least) least = v, leaving = s;
      }
      if (slots_[leaving].cached) slot_of_[static_cast<size_t>(slots_[leaving].expert)] = -1;
      free_.push_back(static_cast<uint32_t>(leaving));
      if (leaving == index) {
        slots_[index] = {};
        return;
      }
      slots_[leaving] = {};
    }
    slots_[index].cached = true;
    slot_of_[static_cast<size_t>(slots_[index].expert)] = static_cast<int64_t>(index);
  }
  void start() {
    for (; next_ < uses_.size(); ++next_) {
      if (at_[next_] >= 0) continue;
      if (free_.empty()) return;
      at_[next_] = free_.back();
      free_.pop_back();
      slots_[static_cast<size_t>(at_[next_])] = {
          static_cast<int64_t>(layer_) * experts_ + uses_[next_].expert, false, true};
    }
  }

  uint32_t layers_, experts_, most_, clock_ = 0, layer_ = 0, held_ = 0;
  std::vector<float> census_, count_;
  std::vector<uint32_t> when_, free_;
  std::vector<int64_t> slot_of_, at_;
  std::vector<Slot> slots_;
  std::vector<ExpertUse> uses_;
  size_t next_ = 0;
};

}  // namespace k3
