#include "thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace k3 {

namespace {
// Rounds follow each other within microseconds; a sleeping thread needs tens of them to wake up.
constexpr int kSpins = 4000;
inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // a few dozen cycles; `yield` is none on most processors
#endif
}
}  // namespace

ThreadPool::ThreadPool(uint32_t threads) {
  for (uint32_t worker = 1; worker < threads; ++worker) {
    if (!add_thread(&threads_, [this, worker] { work(worker); })) return;
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
    published_.store(~uint64_t{0}, std::memory_order_release);
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::start(uint32_t tasks, Call call, void* context) {
  {
    std::lock_guard lock(mutex_);
    tasks_ = tasks;
    call_ = call;
    context_ = context;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
    published_.store(++round_, std::memory_order_release);
  }
  begin_.notify_all();
  take_tasks(0);
  for (int spin = 0; spin < kSpins; ++spin) {
    if (busy_.load(std::memory_order_acquire) == 0) return;
    pause();
  }
  std::unique_lock lock(mutex_);
  end_.wait(lock, [this] { return busy_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::take_tasks(uint32_t worker) {
  for (;;) {
    const uint32_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    call_(context_, task, worker);
  }
}

void ThreadPool::work(uint32_t worker) {
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && published_.load(std::memory_order_acquire) == seen; ++spin) pause();
    {
      std::unique_lock lock(mutex_);
      begin_.wait(lock, [&] { return quit_ || round_ != seen; });
      if (quit_) return;
      seen = round_;
    }
    take_tasks(worker);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      std::lock_guard lock(mutex_);
      end_.notify_one();
    }
  }
}

}  // namespace k3
