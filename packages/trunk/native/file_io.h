// Files as packing needs them: aligned buffers, reads and writes past the page cache where the filesystem
// allows it, and holes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace k3::trunk {

// Fit for O_DIRECT on every disk, 4Kn ones included.
inline constexpr size_t kFileAlign = 4096;
inline constexpr uint64_t align_down(uint64_t n) {
  return n & ~uint64_t{kFileAlign - 1};
}
inline constexpr uint64_t align_up(uint64_t n) {
  return align_down(n + kFileAlign - 1);
}

// A page-aligned buffer that grows on demand; its content is lost then.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();
  bool reserve(size_t bytes);
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_ = nullptr;
  size_t capacity_ = 0;
};

// A file that is read by many threads. Each read tries O_DIRECT and falls back to the page cache for good
// when the filesystem or the disk refuses.
class InputFile {
 public:
  InputFile() = default;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();
  // 0 or errno. Not thread-safe; the rest is.
  int open(const std::string& path, bool direct);
  bool is_open() const { return buffered_ >= 0; }
  bool direct() const { return direct_ok_.load(std::memory_order_relaxed); }
  // Reads bytes offset .. offset + bytes - 1; *data points to them inside `buffer`. 0, errno, or kShortFile.
  int read(uint64_t offset, size_t bytes, AlignedBuffer* buffer, uint8_t** data);
  // The same through the page cache to a given place: for many small pieces.
  int read_small(uint64_t offset, size_t bytes, uint8_t* to) const;
  // True when the range is known to lie in a hole of the file.
  bool is_hole(uint64_t offset, uint64_t bytes) const;

  static constexpr int kShortFile = -1;

 private:
  int read_direct(uint64_t offset, size_t bytes, AlignedBuffer* buffer, uint8_t** data);
  int direct_ = -1;
  int buffered_ = -1;
  std::atomic<bool> direct_ok_{false};
};

// A file that is written at aligned places by many threads.
class OutputFile {
 public:
  OutputFile() = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();
  int open(const std::string& path, bool direct);  // the file exists
  bool is_open() const { return buffered_ >= 0; }
  bool direct() const { return direct_ok_.load(std::memory_order_relaxed); }
  // Writes whole pages from an aligned buffer, leaving out those that are zero: they stay holes. 0 or errno.
  int write_pages(uint64_t offset, const uint8_t* data, size_t bytes);
  int sync() const;

 private:
  int write_run(uint64_t offset, const uint8_t* data, size_t bytes);
  int direct_ = -1;
  int buffered_ = -1;
  std::atomic<bool> direct_ok_{false};
};

}  // namespace k3::trunk
