// What the parts of the kernels' benchmark share: a timer over threads and the limits of the machine.
#pragma once

#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace k3::bench {

// One piece of work of a thread: does the piece with this number and returns what it did, in units of the
// caller's.
using Piece = std::function<double(size_t thread, size_t number)>;

// Seconds on the clock, or of this thread's own use of a core (others' use of it then counts for nothing).
inline double now(bool own_time) {
  timespec at;
  clock_gettime(own_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &at);
  return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_nsec) * 1e-9;
}

// Units per second, all threads together, over about `seconds`. Threads start together.
inline double rate(size_t threads, double seconds, bool own_time, const Piece& piece) {
  std::atomic<size_t> ready{0};
  std::vector<double> rates(threads);
  const auto work = [&](size_t thread) {
    piece(thread, 0);  // code and tables into the caches
    ready++;
    while (ready < threads) std::this_thread::yield();
    const double start = now(own_time);
    double done = 0, elapsed = 0;
    for (size_t number = 1; elapsed < seconds; number++) {
      done += piece(thread, number);
      elapsed = now(own_time) - start;
    }
    rates[thread] = done / elapsed;
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < threads; t++) others.emplace_back(work, t);
  work(0);
  for (auto& other : others) other.join();
  double sum = 0;
  for (const double r : rates) sum += r;
  return sum;
}

// Reads n bytes (a multiple of 1024) and returns something that depends on them.
uint64_t read_bytes(const void* data, size_t n);
// `count` fused multiply-adds of float32 in independent chains, on vectors of 256 or 512 bits.
float multiply_add(bool wide, size_t count);  // x86-64 alone
// n bytes (a multiple of 2 MiB), with huge pages where the system gives them; never freed.
void* allocate(size_t n);

}  // namespace k3::bench
