// Reading the shards and the trunk: O_DIRECT where the filesystem has it, buffered where it does not, every
// failure retried a little and then told once.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "memory.h"
#include "step.h"

struct stat;

namespace k3 {

struct FileSpec {
  std::string path;
  // As recorded when the headers were read.
  uint64_t size = 0, inode = 0;
  int64_t mtime_ns = 0;
};

class FileReader {
 public:
  FileReader() = default;
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // How fast() answers: as measured, or always the same (for experiments and tests).
  enum class Pace : uint8_t { measured = 0, slow = 1, fast = 2 };

  // Opens all. E_DATA when a file is gone or is no longer the one that was recorded, E_USAGE when it may not
  // be read, E_MEMORY when the system gives no more descriptors.
  Error open(const std::vector<FileSpec>& specs, bool direct, Pace pace = Pace::measured);

  // The buffer that read() needs for any `bytes` at any offset: whole pages around them.
  static constexpr size_t buffer_bytes(size_t bytes) { return round_up(bytes, kPage) + kPage; }

  // Reads [offset, offset + bytes) of a file into `buffer` (page-aligned, buffer_bytes(bytes) long) and
  // returns where the first byte is inside it, which is buffer + offset % 4096. Null when it failed or the
  // step was stopped. `fresh` memory was never written: such a read pays for the pages too and says nothing
  // about the disk.
  enum class Target { used, fresh };
  const uint8_t* read(uint32_t file, uint64_t offset, size_t bytes, uint8_t* buffer, Step& step,
                      Target target = Target::used);

  // E_DATA when a file was written to since it was opened: what was read from it may be of two versions. One
  // that was replaced by another of its name is still the old one here, and whole.
  Error changed() const;

  // True while reads come at the speed of memory (holes, page cache): then a worker reads best for itself,
  // into a buffer that stays in its cache, and running ahead only drives the data out to memory and back.
  bool fast() const { return fast_.load(std::memory_order_relaxed); }
  uint32_t buffered_files() const { return buffered_.load(std::memory_order_relaxed); }
  uint64_t size(uint32_t file) const { return files_[file].size; }
  uint32_t count() const { return static_cast<uint32_t>(files_.size()); }

 private:
  struct File {
    std::string path;
    uint64_t size = 0;
    int fd = -1;
    std::atomic<int> plain_fd{-1};  // opened when O_DIRECT turns out not to work
    uint64_t inode = 0;
    int64_t mtime_ns = 0;
    File() = default;
    File(File&& o) noexcept
        : path(std::move(o.path)),
          size(o.size),
          fd(o.fd),
          plain_fd(o.plain_fd.load()),
          inode(o.inode),
          mtime_ns(o.mtime_ns) {}
  };
  bool read_once(File& file, uint64_t begin, uint64_t needed_end, uint64_t end, uint8_t* buffer,
                 std::string* why);
  bool fall_back_to_buffered(File& file);
  static bool same(const File& file, const struct stat& now);
  std::string what_changed(const File& file) const;
  void note_rate(size_t bytes, int64_t ns);

  std::vector<File> files_;
  Pace pace_ = Pace::measured;
  std::atomic<bool> fast_{false};
  std::atomic<float> rate_{0};  // bytes per second of one read, smoothed
  std::atomic<uint32_t> buffered_{0};
};

}  // namespace k3
