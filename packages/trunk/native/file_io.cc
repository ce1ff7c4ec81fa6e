#include "file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace k3::trunk {
namespace {

// One read or write never asks for more: Linux caps at 2 GiB less a page, others refuse more than that.
constexpr size_t kMaxTransfer = size_t{1} << 30;

int open_direct(const char* path, int flags) {
#ifdef O_DIRECT
  return ::open(path, flags | O_CLOEXEC | O_DIRECT);
#else
  (void)path;
  (void)flags;
  return -1;
#endif
}

bool is_zero_page(const uint8_t* page) {
  // Weights differ from zero at once, so the first words decide nearly always.
  uint64_t word;
  for (size_t i = 0; i < kFileAlign; i += 8) {
    std::memcpy(&word, page + i, 8);
    if (word != 0) return false;
  }
  return true;
}

}  // namespace

AlignedBuffer::~AlignedBuffer() {
  std::free(data_);
}

bool AlignedBuffer::reserve(size_t bytes) {
  if (bytes <= capacity_) return true;
  std::free(data_);
  capacity_ = align_up(bytes);
  data_ = static_cast<uint8_t*>(std::aligned_alloc(kFileAlign, capacity_));
  if (data_ == nullptr) capacity_ = 0;
  return data_ != nullptr;
}

InputFile::~InputFile() {
  if (direct_ >= 0) ::close(direct_);
  if (buffered_ >= 0) ::close(buffered_);
}

int InputFile::open(const std::string& path, bool direct) {
  buffered_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (buffered_ < 0) return errno;
  direct_ = direct ? open_direct(path.c_str(), O_RDONLY) : -1;
  direct_ok_.store(direct_ >= 0, std::memory_order_relaxed);
  return 0;
}

int InputFile::read_direct(uint64_t offset, size_t bytes, AlignedBuffer* buffer, uint8_t** data) {
  const uint64_t begin = align_down(offset);
  const size_t lead = static_cast<size_t>(offset - begin);
  const size_t wanted = lead + bytes;
  const size_t padded = static_cast<size_t>(align_up(wanted));
  size_t done = 0;
  while (done < wanted) {
    const ssize_t n = ::pread(direct_, buffer->data() + done, std::min(padded - done, kMaxTransfer),
                              static_cast<off_t>(begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return kShortFile;
    done += static_cast<size_t>(n);
    if (done < wanted && done % kFileAlign != 0)
      return EINVAL;  // cannot go on from here: let the page cache do it
  }
  *data = buffer->data() + lead;
  return 0;
}

int InputFile::read(uint64_t offset, size_t bytes, AlignedBuffer* buffer, uint8_t** data) {
  if (!buffer->reserve(bytes + 2 * kFileAlign)) return ENOMEM;
  if (direct()) {
    const int error = read_direct(offset, bytes, buffer, data);
    if (error != EINVAL && error != EOPNOTSUPP) return error;
    direct_ok_.store(false, std::memory_order_relaxed);
  }
  *data = buffer->data();
  return read_small(offset, bytes, buffer->data());
}

int InputFile::read_small(uint64_t offset, size_t bytes, uint8_t* to) const {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(buffered_, to + done, std::min(bytes - done, kMaxTransfer),
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return kShortFile;
    done += static_cast<size_t>(n);
  }
  return 0;
}

bool InputFile::is_hole(uint64_t offset, uint64_t bytes) const {
#ifdef SEEK_DATA
  // Only pread is used on this descriptor, so its position is free to move.
  const off_t end = ::lseek(buffered_, 0, SEEK_END);
  if (end < 0 || offset + bytes > static_cast<uint64_t>(end)) return false;
  const off_t data = ::lseek(buffered_, static_cast<off_t>(offset), SEEK_DATA);
  if (data < 0) return errno == ENXIO;  // no data up to the end of the file
  return static_cast<uint64_t>(data) >= offset + bytes;
#else
  (void)offset;
  (void)bytes;
  return false;
#endif
}

OutputFile::~OutputFile() {
  if (direct_ >= 0) ::close(direct_);
  if (buffered_ >= 0) ::close(buffered_);
}

int OutputFile::open(const std::string& path, bool direct) {
  buffered_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (buffered_ < 0) return errno;
  direct_ = direct ? open_direct(path.c_str(), O_WRONLY) : -1;
  direct_ok_.store(direct_ >= 0, std::memory_order_relaxed);
  return 0;
}

int OutputFile::write_run(uint64_t offset, const uint8_t* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const bool direct_now = direct() && done % kFileAlign == 0;
    const ssize_t n = ::pwrite(direct_now ? direct_ : buffered_, data + done,
                               std::min(bytes - done, kMaxTransfer), static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && direct_now && (errno == EINVAL || errno == EOPNOTSUPP)) {
      direct_ok_.store(false, std::memory_order_relaxed);
      continue;
    }
    if (n < 0) return errno;
    if (n == 0) return EIO;
    done += static_cast<size_t>(n);
  }
  return 0;
}

int OutputFile::write_pages(uint64_t offset, const uint8_t* data, size_t bytes) {
  for (size_t begin = 0; begin < bytes;) {
    if (is_zero_page(data + begin)) {
      begin += kFileAlign;
      continue;
    }
    size_t end = begin + kFileAlign;
    while (end < bytes && !is_zero_page(data + end)) end += kFileAlign;
    if (const int error = write_run(offset + begin, data + begin, end - begin)) return error;
    begin = end;
  }
  return 0;
}

int OutputFile::sync() const {
#ifdef __APPLE__
  return ::fcntl(buffered_, F_FULLFSYNC) == 0 ? 0 : errno;
#else
  return ::fdatasync(buffered_) == 0 ? 0 : errno;
#endif
}

}  // namespace k3::trunk
