// What every expert is worth to the cache, and which one of those in it is worth least.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace k3 {

// An expert's worth is how often it was asked for, halved with every token since, and how often per token in
// earlier runs, over the layers that pass until its own comes round again. An LRU keeps nothing below one
// token's working set; this keeps what recurs.
//
// The cached experts stand in order of their layer: all of one layer are as far away, so which of them is
// worth least changes with a token, or when one of them comes or goes, and not from layer to layer. A miss
// then looks at one number a layer instead of at every slot.
class ExpertWorth {
 public:
  static constexpr uint32_t kNobody = 0xffffffff;
  struct Least {
    uint32_t slot = kNobody;
    double worth = std::numeric_limits<double>::infinity();
  };

  // Census: [layers][experts], uses per token in earlier runs; or empty.
  void open(uint32_t layers, uint32_t experts, uint32_t slots, std::vector<float> census);

  void begin_pass(uint32_t tokens) { clock_ += tokens; }
  void begin_layer(uint32_t layer) { layer_ = layer; }
  // An expert of the present layer was asked for, by tokens of this weight.
  void chosen(size_t expert, float recency);
  double of(size_t expert) const;

  // An expert of the present layer is in the cache from now on. Not while it is held.
  void keep(size_t expert, uint32_t slot);
  // One of any layer no longer is.
  void drop(size_t expert, uint32_t slot);
  // A cached expert of the present layer is in use, or no longer: until then it cannot go.
  void hold(size_t expert, uint32_t slot);
  void unhold(size_t expert, uint32_t slot);

  // Of the cached experts that may go: the one that is worth least, of several the one in the first slot.
  Least least();

 private:
  struct Seen {
    float count = 0;
    uint32_t clock = 0;
  };
  struct Kept {
    uint32_t slot = 0;
    uint32_t expert = 0;
    double worth = 0;  // before the distance divides it; as of Layer::clock
  };
  struct Layer {
    std::vector<Kept> kept;
    double least = 0;  // of the worths of those that may go; when `sure`
    bool sure = false;
    bool counted = false;  // the worths are as of `clock`, and nothing was chosen since
    uint32_t clock = 0;
  };

  double recurrence(size_t expert) const;
  uint32_t distance(uint32_t layer) const {
    return layer > layer_ ? layer - layer_ : layer + static_cast<uint32_t>(layers_.size()) - layer_;
  }
  void settle(Layer* layer);

  uint32_t experts_ = 0, layer_ = 0, clock_ = 0;
  std::vector<float> census_;
  std::vector<Seen> seen_;
  std::vector<Layer> layers_;
  std::vector<uint8_t> held_;  // per slot
};

}  // namespace k3
