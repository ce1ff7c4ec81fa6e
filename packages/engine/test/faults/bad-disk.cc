// A disk that misbehaves, for tests: preloaded, it stands before pread(2) for reads of the model's weights
// (shards and packed trunks, 4096 bytes and more). K3_BAD_DISK is one of
//   eio-once    every hundredth read fails the first time
//   eio         every read of the file offset range K3_BAD_RANGE=begin-end fails
//   short       reads give at most 8192 bytes
//   no-direct   reads through O_DIRECT descriptors are refused
//   not-supported  the same, in other words
//   slow        every read takes 30 ms
//
// K3_BAD_FILE, when it is set, is a part of the path of the files concerned.
// K3_BAD_OPEN=errno refuses to open weights with O_DIRECT.
//
// And a system that gives few threads: from when K3_FEW_THREADS is set, no more than so many.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

using Pread = ssize_t (*)(int, void*, size_t, off64_t);
using Open = int (*)(const char*, int, ...);

// What stands behind this. Looked up once, when the program is loaded: dlsym takes the loader's lock, and
// whoever opens a file while another thread loads a library would wait for it, maybe for ever.
struct System {
  Pread pread = look_up<Pread>("pread"), pread64 = look_up<Pread>("pread64");
  Open open = look_up<Open>("open"), open64 = look_up<Open>("open64");
  decltype(&pthread_create) thread = look_up<decltype(&pthread_create)>("pthread_create");

 private:
  template <typename F>
  static F look_up(const char* symbol) {
    return reinterpret_cast<F>(dlsym(RTLD_NEXT, symbol));
  }
};
const System& system_calls() {
  static const System found;  // by the first call too, should that come before the constructors
  return found;
}
[[maybe_unused]] const System& at_load = system_calls();

std::atomic<unsigned> reads{0};

std::string path_of(int fd) {
  char link[32], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof path);
  return std::string(path, n < 0 ? 0 : static_cast<size_t>(n));
}

bool holds_weights(const std::string& path) {
  const char* only = std::getenv("K3_BAD_FILE");
  if (only && path.find(only) == std::string::npos) return false;
  return path.find(".safetensors") != std::string::npos || path.find("/trunk-") != std::string::npos;
}

ssize_t bad_pread(Pread real, int fd, void* buffer, size_t bytes, off64_t offset) {
  const char* mode = std::getenv("K3_BAD_DISK");
  if (!mode || bytes < 4096 || (reinterpret_cast<size_t>(buffer) % 4096) != 0 || !holds_weights(path_of(fd)))
    return real(fd, buffer, bytes, offset);
  const unsigned n = reads.fetch_add(1);
  if (std::strcmp(mode, "eio-once") == 0 && n % 100 == 7) {
    errno = EIO;
    return -1;
  }
  if (std::strcmp(mode, "eio") == 0) {
    long long begin = 0, end = 0;
    std::sscanf(std::getenv("K3_BAD_RANGE"), "%lld-%lld", &begin, &end);
    if (offset < end && offset + static_cast<long long>(bytes) > begin) {
      errno = EIO;
      return -1;
    }
  }
  if (std::strcmp(mode, "short") == 0 && bytes > 8192) bytes = 8192;
  if (std::strcmp(mode, "slow") == 0) usleep(30000);
  if (std::strcmp(mode, "no-direct") == 0 && (fcntl(fd, F_GETFL) & O_DIRECT)) {
    errno = EINVAL;
    return -1;
  }
  if (std::strcmp(mode, "not-supported") == 0 && (fcntl(fd, F_GETFL) & O_DIRECT)) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return real(fd, buffer, bytes, offset);
}

int bad_open(Open real, const char* path, int flags, mode_t mode) {
  const char* error = std::getenv("K3_BAD_OPEN");
  if (error && (flags & O_DIRECT) && holds_weights(path)) {
    errno = std::atoi(error);
    return -1;
  }
  return real(path, flags, mode);
}

mode_t mode_in(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) ? va_arg(list, mode_t) : 0;
}

}  // namespace

extern "C" ssize_t pread(int fd, void* buffer, size_t bytes, off_t offset) {
  return bad_pread(system_calls().pread, fd, buffer, bytes, offset);
}
extern "C" ssize_t pread64(int fd, void* buffer, size_t bytes, off64_t offset) {
  return bad_pread(system_calls().pread64, fd, buffer, bytes, offset);
}
extern "C" int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_in(flags, list);
  va_end(list);
  return bad_open(system_calls().open, path, flags, mode);
}
extern "C" int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_in(flags, list);
  va_end(list);
  return bad_open(system_calls().open64, path, flags, mode);
}
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) {
  static std::atomic<int> given{0};
  const char* most = std::getenv("K3_FEW_THREADS");
  if (most && given.fetch_add(1) >= std::atoi(most)) return EAGAIN;
  return system_calls().thread(thread, attributes, start, argument);
}
