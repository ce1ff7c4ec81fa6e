// The store of experts alone, with experts of 512 bytes: what its decisions cost, and whether they are those
// of the rule. `eviction FILE LAYERS EXPERTS CHOSEN CACHED TOKENS SEED check|time` makes up a routing (some
// experts come again and again) and runs it. With `check` every decision is compared with a store that looks
// at all slots each time; then tokens also come several at once, and fewer reads are in flight than there are
// misses.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "expert_store.h"
#include "plain_store.h"

namespace {

using namespace k3;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kBytes = 512;

// Distinct experts for one token: half of them from a few that this layer likes, which change now and then.
class Routing {
 public:
  Routing(uint32_t layers, uint32_t experts, uint32_t chosen, uint64_t seed)
      : random_(seed), experts_(experts), chosen_(chosen), liked_(layers) {}
  std::vector<ExpertUse> next(uint32_t layer, uint32_t tokens) {
    std::vector<ExpertUse> uses;
    for (uint32_t t = 0; t < tokens; ++t) {
      const float weight = std::ldexp(1.0f, -static_cast<int>(tokens - 1 - t));
      std::vector<uint32_t>& liked = liked_[layer];
      if (liked.empty() || below(8) == 0) {
        liked.clear();
        for (uint32_t i = 0; i < chosen_; ++i) liked.push_back(below(experts_));
      }
      std::vector<uint32_t> taken;
      while (taken.size() < chosen_) {
        const uint32_t e = below(2) == 0 ? liked[below(chosen_)] : below(experts_);
        if (std::find(taken.begin(), taken.end(), e) == taken.end()) taken.push_back(e);
      }
      for (uint32_t e : taken) {
        const auto same =
            std::find_if(uses.begin(), uses.end(), [&](const ExpertUse& u) { return u.expert == e; });
        if (same == uses.end()) {
          uses.push_back({e, weight, 1});
        } else {
          same->recency += weight, ++same->tokens;
        }
      }
    }
    return uses;
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

 private:
  std::mt19937_64 random_;
  uint32_t experts_, chosen_;
  std::vector<std::vector<uint32_t>> liked_;
};

template <typename Spec>
Spec spec_of(const char* path) {
  struct stat s;
  if (stat(path, &s) != 0) std::abort();
  Spec spec;
  spec.path = path;
  spec.size = static_cast<uint64_t>(s.st_size);
  // Sources from before files were recognised by them have no such fields.
  if constexpr (requires { spec.inode; }) {
    spec.inode = s.st_ino;
    spec.mtime_ns = int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec;
  }
  return spec;
}

struct Setting {
  uint32_t layers, experts, chosen, cached, tokens;
  uint64_t seed;
  bool check;
};

class Run {
 public:
  Run(const char* path, const Setting& setting, bool census)
      : s_(setting), routing_(s_.layers, s_.experts, s_.chosen, s_.seed) {
    const size_t count = size_t{s_.layers} * s_.experts;
    table_.parts = 1, table_.layers = s_.layers, table_.experts = s_.experts;
    table_.part_bytes = {kBytes};
    table_.offsets.assign(count, 0);
    table_.files.assign(count, 0);
    std::vector<float> shares;
    for (size_t e = 0; census && e < count; ++e) {
      shares.push_back(static_cast<float>(routing_.below(8)) / 256);
    }
    const uint32_t in_flight = s_.check ? 3 : s_.chosen;
    if (files_.open({spec_of<FileSpec>(path)}, false, FileReader::Pace::slow)) std::abort();
    ExpertStore::Options options;
    options.readers = 2, options.cached = s_.cached, options.in_flight = in_flight, options.census = shares;
    if (store_.open(options)) std::abort();
    plain_ = std::make_unique<PlainStore>(s_.layers, s_.experts, s_.cached, in_flight, shares);
  }

  bool pass(uint32_t tokens, const std::vector<std::vector<ExpertUse>>& uses) {
    store_.begin_pass(tokens);
    plain_->begin_pass(tokens);
    for (uint32_t layer = 0; layer < s_.layers; ++layer) {
      if (!one_layer(layer, uses[layer])) return false;
    }
    store_.end_pass(true);
    return true;
  }
  Routing& routing() { return routing_; }
  double seconds = 0;  // in the store's calls, but for the wait
  uint64_t requested() const { return step_.counters.experts_requested; }
  uint64_t resident() const { return step_.counters.experts_resident; }

 private:
  bool one_layer(uint32_t layer, const std::vector<ExpertUse>& uses) {
    timed([&] { store_.begin_layer(layer, uses); });
    std::vector<int64_t> due =
        s_.check ? plain_->begin_layer(layer, uses) : std::vector<int64_t>(uses.size(), 0);
    std::vector<bool> given(uses.size(), false);
    for (size_t all = 0; all < uses.size();) {
      // Everything that has a slot, so that a batch does not depend on which read is the first to be done.
      size_t expected = 0;
      for (size_t i = 0; i < uses.size(); ++i) expected += due[i] >= 0 && !given[i];
      std::vector<ExpertStore::Ready> batch, some;
      while (batch.size() < expected && store_.next(&some))
        batch.insert(batch.end(), some.begin(), some.end());
      if (batch.size() != expected) return false;
      std::sort(batch.begin(), batch.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
      std::vector<uint32_t> indices;
      for (const ExpertStore::Ready& ready : batch) {
        given[ready.index] = true;
        indices.push_back(ready.index);
        if (!base_) base_ = ready.part[0];  // the first of all lies in slot 0
        const int64_t slot = (ready.part[0] - base_) / static_cast<int64_t>(ExpertStore::slot_bytes(table_));
        if (s_.check && slot != due[ready.index]) return false;
      }
      all += batch.size();
      timed([&] { store_.done(batch); });
      if (s_.check) due = plain_->done(indices);
    }
    store_.end_layer();
    return true;
  }
  template <typename F>
  void timed(F&& f) {
    const auto begun = Clock::now();
    f();
    seconds += std::chrono::duration<double>(Clock::now() - begun).count();
  }

  Setting s_;
  Routing routing_;
  ExpertTable table_;
  FileReader files_;
  Step step_;
  ExpertStore store_{table_, files_, step_};
  std::unique_ptr<PlainStore> plain_;
  const uint8_t* base_ = nullptr;
};

bool check(const char* path, const Setting& s, bool census) {
  Run run(path, s, census);
  for (uint32_t t = 0; t < s.tokens; ++t) {
    const uint32_t tokens = run.routing().below(4) == 0 ? 5 : 1;
    std::vector<std::vector<ExpertUse>> uses;
    for (uint32_t l = 0; l < s.layers; ++l) uses.push_back(run.routing().next(l, tokens));
    if (!run.pass(tokens, uses)) {
      std::printf("pass %u (census: %d): another decision than the rule's\n", t, census);
      return false;
    }
  }
  std::printf("%llu of %llu resident, as the rule says (census: %d)\n",
              static_cast<unsigned long long>(run.resident()),
              static_cast<unsigned long long>(run.requested()), census);
  return run.resident() > 0;
}

int time_it(const char* path, const Setting& s) {
  Run run(path, s, true);
  // Every expert once, so that the cache is full and something is known of all.
  for (uint32_t first = 0; first < s.experts; first += s.chosen) {
    std::vector<ExpertUse> some;
    for (uint32_t e = first; e < std::min(s.experts, first + s.chosen); ++e) some.push_back({e, 1, 1});
    if (!run.pass(1, std::vector<std::vector<ExpertUse>>(s.layers, some))) return 1;
  }
  run.seconds = 0;
  const uint64_t requested = run.requested(), resident = run.resident();
  for (uint32_t t = 0; t < s.tokens; ++t) {
    std::vector<std::vector<ExpertUse>> uses;
    for (uint32_t l = 0; l < s.layers; ++l) uses.push_back(run.routing().next(l, 1));
    if (!run.pass(1, uses)) return 1;
  }
  const double share =
      static_cast<double>(run.resident() - resident) / static_cast<double>(run.requested() - requested);
  std::printf("%u cached: %.2f ms a token, %.1f %% resident\n", s.cached, 1e3 * run.seconds / s.tokens,
              100 * share);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  const auto number = [&](int i) { return static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10)); };
  const Setting s = {
      number(2), number(3), number(4), number(5), number(6), number(7), !std::strcmp(argv[8], "check")};
  if (!s.check) return time_it(argv[1], s);
  return check(argv[1], s, false) && check(argv[1], s, true) ? 0 : 1;
}
