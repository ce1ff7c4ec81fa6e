// Big areas of memory, straight from the kernel, so that the plan's numbers are what the process really
// takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace k3 {

inline constexpr size_t kPage = 4096;
inline constexpr size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

// An anonymous mapping: zero at first, page-aligned (2 MiB-aligned when it asks for huge pages), freed at
// once.
class Area {
 public:
  enum class Pages { huge, small };

  Area() = default;
  ~Area() { clear(); }
  Area(Area&& other) noexcept { swap(other); }
  Area& operator=(Area&& other) noexcept {
    swap(other);
    return *this;
  }
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;

  // False when the kernel refuses. Reserves addresses only: a page costs memory once it is written.
  bool allocate(size_t bytes, Pages pages = Pages::huge);
  void clear();

  uint8_t* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  size_t size() const { return size_; }

 private:
  void swap(Area& other) {
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Lays out parts of one area: first with a null base, to learn the size; then with the real one, to get the
// pointers.
class Carver {
 public:
  explicit Carver(uint8_t* base) : base_(base) {}

  template <typename T>
  T* take(size_t count) {
    const size_t at = offset_;
    offset_ += round_up(count * sizeof(T), 64);
    if (offset_ > peak_) peak_ = offset_;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  // Parts that are never alive together start again from the same mark.
  size_t mark() const { return offset_; }
  void rewind(size_t mark) { offset_ = mark; }
  size_t peak() const { return peak_; }

 private:
  uint8_t* base_;
  size_t offset_ = 0;
  size_t peak_ = 0;
};

}  // namespace k3
