#include "expert_worth.h"

#include <algorithm>
#include <cmath>

namespace k3 {

void ExpertWorth::open(uint32_t layers, uint32_t experts, uint32_t slots, std::vector<float> census) {
  experts_ = experts;
  census_ = std::move(census);
  seen_.assign(size_t{layers} * experts, {});
  layers_.assign(layers, {});
  held_.assign(slots, 0);
}

void ExpertWorth::chosen(size_t expert, float recency) {
  Seen& seen = seen_[expert];
  seen.count = std::ldexp(seen.count, -static_cast<int>(clock_ - seen.clock)) + recency;
  seen.clock = clock_;
  layers_[layer_].counted = false;
}

double ExpertWorth::recurrence(size_t expert) const {
  const Seen& seen = seen_[expert];
  const double recent = std::ldexp(static_cast<double>(seen.count), -static_cast<int>(clock_ - seen.clock));
  const double usual = census_.empty() ? 0 : census_[expert];
  return recent + usual;
}

double ExpertWorth::of(size_t expert) const {
  return recurrence(expert) / distance(static_cast<uint32_t>(expert / experts_));
}

void ExpertWorth::keep(size_t expert, uint32_t slot) {
  Layer& layer = layers_[expert / experts_];
  const double worth = recurrence(expert);
  layer.kept.push_back({slot, static_cast<uint32_t>(expert), worth});
  layer.least = std::min(layer.least, worth);
}

void ExpertWorth::drop(size_t expert, uint32_t slot) {
  Layer& layer = layers_[expert / experts_];
  const auto at =
      std::find_if(layer.kept.begin(), layer.kept.end(), [&](const Kept& k) { return k.slot == slot; });
  *at = layer.kept.back();
  layer.kept.pop_back();
  layer.sure = false;
}

void ExpertWorth::hold(size_t expert, uint32_t slot) {
  held_[slot] = 1;
  layers_[expert / experts_].sure = false;
}

void ExpertWorth::unhold(size_t expert, uint32_t slot) {
  held_[slot] = 0;
  Layer& layer = layers_[expert / experts_];
  layer.least = std::min(layer.least, recurrence(expert));
}

// Brings the worths of a layer and the least of them up to date.
void ExpertWorth::settle(Layer* layer) {
  if (!layer->counted || layer->clock != clock_) {
    for (Kept& kept : layer->kept) kept.worth = recurrence(kept.expert);
    layer->counted = true;
    layer->clock = clock_;
    layer->sure = false;
  }
  if (layer->sure) return;
  layer->least = std::numeric_limits<double>::infinity();
  for (const Kept& kept : layer->kept) {
    if (!held_[kept.slot]) layer->least = std::min(layer->least, kept.worth);
  }
  layer->sure = true;
}

ExpertWorth::Least ExpertWorth::least() {
  Least least;
  // The quotient of the least is the least of the quotients, since rounding keeps the order.
  for (uint32_t l = 0; l < layers_.size(); ++l) {
    if (layers_[l].kept.empty()) continue;
    settle(&layers_[l]);
    least.worth = std::min(least.worth, layers_[l].least / distance(l));
  }
  if (least.worth == std::numeric_limits<double>::infinity()) return least;
  for (uint32_t l = 0; l < layers_.size(); ++l) {
    const uint32_t away = distance(l);
    if (layers_[l].kept.empty() || layers_[l].least / away != least.worth) continue;
    for (const Kept& kept : layers_[l].kept) {
      if (kept.slot < least.slot && !held_[kept.slot] && kept.worth / away == least.worth) {
        least.slot = kept.slot;
      }
    }
  }
  return least;
}

}  // namespace k3
