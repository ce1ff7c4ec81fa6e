// What the parts of the kernels' test share: counting, random data, comparison of bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels.h"

namespace k3::test {

struct Tally {
  long passed = 0;
  long failed = 0;
  void check(bool good, const char* what, const char* path, const char* detail = "") {
    if (good) {
      passed++;
    } else if (++failed <= 50) {
      std::printf("FAILED %s (%s) %s\n", what, path, detail);
    }
  }
};

// xoshiro-like quality is not needed: splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return bits() % n; }
  float uniform() { return static_cast<float>(static_cast<double>(bits() >> 11) * 0x1p-53 * 2 - 1); }
  // How numbers are drawn: ordinary, of all sizes (subnormals, infinities and NaN too), or all sizes but
  // finite.
  enum class Kind { ordinary, any_bits, finite };
  float number(Kind kind) {
    if (kind == Kind::ordinary) return uniform();
    for (;;) {
      auto raw = static_cast<uint32_t>(bits());
      if (below(4) == 0) raw &= 0x807fffff;  // more subnormals
      if (below(16) == 0) raw &= 0x80000000;
      float value;
      std::memcpy(&value, &raw, sizeof value);
      if (kind == Kind::any_bits || std::isfinite(value)) return value;
    }
  }

 private:
  uint64_t state_;
};

// n values that start `shift` elements into an allocation that ends with them: reads past the end are seen by
// the address sanitizer, and with shift nothing is aligned by luck.
template <class T>
class Array {
 public:
  Array(size_t n, size_t shift) : shift_(shift), data_(n + shift) {}
  T* get() { return data_.data() + shift_; }
  const T* get() const { return data_.data() + shift_; }
  size_t size() const { return data_.size() - shift_; }
  T& operator[](size_t i) { return data_[shift_ + i]; }
  const T& operator[](size_t i) const { return data_[shift_ + i]; }

 private:
  size_t shift_;
  std::vector<T> data_;
};

inline Array<float> numbers(Random& random, size_t n, Random::Kind kind) {
  Array<float> out(n, random.below(5));
  for (size_t i = 0; i < n; i++) out[i] = random.number(kind);
  return out;
}

inline bool same_bits(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::memcmp(&a, &b, sizeof a) == 0;
}

inline bool same_bits(const Array<float>& a, const Array<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); i++)
    if (!same_bits(a[i], b[i])) return false;
  return true;
}

// Every vector table against the scalar one.
void check_paths(Tally& tally, const Kernels& kernels, uint64_t seed, size_t rounds);
// The scalar table against sums and functions in double.
void check_accuracy(Tally& tally, const Kernels& kernels, uint64_t seed, bool thorough);
// MXFP4 against values written out by hand.
void check_mxfp4(Tally& tally, const Kernels& kernels);

}  // namespace k3::test
