#include "file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#ifndef O_DIRECT
#define O_DIRECT 0  // macOS has none: reads are buffered there
#endif

namespace k3 {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kAttempts = 4;  // the first, and three again
constexpr std::chrono::milliseconds kFirstWait{20};
constexpr size_t kMaxTransfer = size_t{1}
                                << 30;  // Linux caps one read at 2 GiB less a page, macOS refuses from 2 GiB

// One read at more than 4 GB/s is no disk's; below 2 GB/s it may be.
constexpr float kFastAbove = 4e9f, kFastBelow = 2e9f;
constexpr size_t kRatedRead = size_t{64} << 10;

int64_t mtime_ns(const struct stat& s) {
#if defined(__APPLE__)
  return int64_t{s.st_mtimespec.tv_sec} * 1'000'000'000 + s.st_mtimespec.tv_nsec;
#else
  return int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec;
#endif
}

std::string reason(int error) {
  return std::string(std::strerror(error));
}

// What systems say to O_DIRECT on a filesystem that has none, when opening or when reading.
bool refuses_direct(int error) {
  return error == EINVAL || error == EOPNOTSUPP;
}

Error cannot_open(const std::string& path, int error) {
  const std::string what = path + ": cannot be opened: " + reason(error);
  switch (error) {
    case EMFILE:
      return {"E_MEMORY", what, "raise the limit of open files of a process: ulimit -n"};
    case ENFILE:
      return {"E_MEMORY", what, "raise the limit of open files of the system: sysctl fs.file-max"};
    case EACCES:
    case EPERM:
      return {"E_USAGE", what, "this user may not read the file: see its owner and mode (ls -l)"};
    default:
      return {"E_DATA", what, "check the files with `k3 verify`"};
  }
}

}  // namespace

FileReader::~FileReader() {
  for (File& file : files_) {
    if (file.fd >= 0) close(file.fd);
    if (file.plain_fd.load() >= 0) close(file.plain_fd.load());
  }
}

Error FileReader::open(const std::vector<FileSpec>& specs, bool direct, Pace pace) {
  pace_ = pace;
  fast_.store(pace == Pace::fast, std::memory_order_relaxed);
  files_.reserve(specs.size());
  for (const FileSpec& spec : specs) {
    File& file = files_.emplace_back();
    file.path = spec.path;
    file.size = spec.size;
    // Not waiting: opening a pipe in the place of the file would never end.
    constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    if (direct) file.fd = ::open(spec.path.c_str(), kFlags | O_DIRECT);
    if (file.fd < 0) {
      if (direct && !refuses_direct(errno)) return cannot_open(spec.path, errno);
      file.fd = ::open(spec.path.c_str(), kFlags);
      if (file.fd < 0) return cannot_open(spec.path, errno);
      buffered_.fetch_add(1, std::memory_order_relaxed);
    }
    struct stat s;
    if (fstat(file.fd, &s) != 0) return cannot_open(spec.path, errno);
    const std::string hint =
        "something is writing to the model's files; wait until it is done and start again";
    if (!S_ISREG(s.st_mode) || static_cast<uint64_t>(s.st_size) != spec.size) {
      return {"E_DATA",
              spec.path + ": has " + std::to_string(s.st_size) + " bytes, had " + std::to_string(spec.size) +
                  " when its header was read",
              hint};
    }
    file.inode = spec.inode;
    file.mtime_ns = spec.mtime_ns;
    // Shards of layers of one kind have the same size: one in the place of another is known by these alone.
    if (!same(file, s))
      return {"E_DATA", spec.path + ": was replaced or written to after its header was read", hint};
  }
  return {};
}

const uint8_t* FileReader::read(uint32_t index, uint64_t offset, size_t bytes, uint8_t* buffer, Step& step,
                                Target target) {
  File& file = files_[index];
  if (offset > file.size || bytes > file.size - offset) {
    step.fail({"E_DATA", file.path + ": a weight reaches past the end of the file", ""});
    return nullptr;
  }
  const uint64_t begin = offset / kPage * kPage;
  const uint64_t end = round_up(offset + bytes, kPage);
  std::string why;
  auto wait = kFirstWait;
  for (int attempt = 0; attempt < kAttempts && !step.stopped(); ++attempt, wait *= 4) {
    if (attempt > 0) {
      step.counters.retries.fetch_add(1, std::memory_order_relaxed);
      std::this_thread::sleep_for(wait);
    }
    const auto started = Clock::now();
    if (read_once(file, begin, offset + bytes, end, buffer, &why)) {
      if (target == Target::used) note_rate(bytes, std::chrono::nanoseconds(Clock::now() - started).count());
      return buffer + (offset - begin);
    }
  }
  if (!step.stopped()) {
    step.fail({"E_READ",
               file.path + ": " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                   " could not be read: " + why + what_changed(file),
               "check the disk (dmesg), then the files: k3 verify"});
  }
  return nullptr;
}

bool FileReader::read_once(File& file, uint64_t begin, uint64_t needed_end, uint64_t end, uint8_t* buffer,
                           std::string* why) {
  uint64_t at = begin;
  while (at < needed_end) {
    const int plain = file.plain_fd.load(std::memory_order_acquire);
    const size_t want = std::min<uint64_t>(end - at, kMaxTransfer);
    const ssize_t got =
        pread(plain >= 0 ? plain : file.fd, buffer + (at - begin), want, static_cast<off_t>(at));
    if (got < 0) {
      if (errno == EINTR) continue;
      if (refuses_direct(errno) && plain < 0 && fall_back_to_buffered(file)) continue;
      *why = reason(errno);
      return false;
    }
    if (at + static_cast<uint64_t>(got) >= needed_end) return true;
    // A short read: O_DIRECT goes on from a whole page, and no progress means that the file ends here.
    const uint64_t next = (at + static_cast<uint64_t>(got)) / kPage * kPage;
    if (next <= at) {
      *why = "the file ends at " + std::to_string(at + static_cast<uint64_t>(got));
      return false;
    }
    at = next;
  }
  return true;
}

bool FileReader::fall_back_to_buffered(File& file) {
  const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat now;
  // The name may belong to another file by now.
  if (fstat(fd, &now) != 0 || !same(file, now)) {
    close(fd);
    return false;
  }
  int none = -1;
  if (!file.plain_fd.compare_exchange_strong(none, fd, std::memory_order_acq_rel)) {
    close(fd);  // another thread was first
  } else {
    buffered_.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

bool FileReader::same(const File& file, const struct stat& now) {
  return now.st_ino == file.inode && static_cast<uint64_t>(now.st_size) == file.size &&
         mtime_ns(now) == file.mtime_ns;
}

Error FileReader::changed() const {
  for (const File& file : files_) {
    struct stat now;
    if (fstat(file.fd, &now) == 0 && same(file, now)) continue;
    return {"E_DATA", file.path + ": was written to while the model was open",
            "wait until nothing writes to the model's files, check them with `k3 verify` and start again"};
  }
  return {};
}

std::string FileReader::what_changed(const File& file) const {
  struct stat s;
  if (stat(file.path.c_str(), &s) != 0) return "; the file is gone (" + reason(errno) + ")";
  if (static_cast<uint64_t>(s.st_size) != file.size) {
    return "; the file now has " + std::to_string(s.st_size) + " bytes instead of " +
           std::to_string(file.size);
  }
  if (s.st_ino != file.inode || mtime_ns(s) != file.mtime_ns)
    return "; the file has been changed or replaced";
  return "";
}

void FileReader::note_rate(size_t bytes, int64_t ns) {
  if (bytes < kRatedRead || pace_ != Pace::measured) return;
  const float sample = static_cast<float>(bytes) / static_cast<float>(ns > 0 ? ns : 1) * 1e9f;
  const float rate = rate_.load(std::memory_order_relaxed);
  const float smoothed = rate == 0 ? sample : 0.95f * rate + 0.05f * std::min(sample, 2 * kFastAbove);
  rate_.store(smoothed, std::memory_order_relaxed);
  if (smoothed > kFastAbove) fast_.store(true, std::memory_order_relaxed);
  if (smoothed < kFastBelow) fast_.store(false, std::memory_order_relaxed);
}

}  // namespace k3
