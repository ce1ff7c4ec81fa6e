// The threads that compute. The caller of run() is worker 0 and works along.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "step.h"

namespace k3 {

// Adds a thread that runs f. False when the system has none to give: a limit of processes, often that of a
// container, counts threads.
template <typename F>
bool add_thread(std::vector<std::thread>* threads, F&& f) {
  try {
    threads->emplace_back(std::forward<F>(f));
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}
inline Error no_threads(const std::string& what) {
  return {"E_MEMORY", "the system gives no thread to " + what,
          "give fewer --threads, or raise the limit of processes (ulimit -u, pids.max)"};
}

class ThreadPool {
 public:
  // When the system gives fewer threads than asked for, threads() says so.
  explicit ThreadPool(uint32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t threads() const { return static_cast<uint32_t>(threads_.size()) + 1; }

  // Calls f(task, worker) once for every task < tasks, on any worker, and returns when all are done. Tasks
  // are begun in ascending order, which is the order in which the disk delivers. Not reentrant; one caller at
  // a time.
  template <typename F>
  void run(uint32_t tasks, F&& f) {
    if (tasks == 0) return;
    if (tasks == 1 || threads_.empty()) {
      for (uint32_t task = 0; task < tasks; ++task) f(task, 0u);
      return;
    }
    start(
        tasks,
        [](void* context, uint32_t task, uint32_t worker) { (*static_cast<F*>(context))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Call = void (*)(void* context, uint32_t task, uint32_t worker);
  void start(uint32_t tasks, Call call, void* context);
  void work(uint32_t worker);
  void take_tasks(uint32_t worker);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable begin_, end_;
  uint64_t round_ = 0;  // guarded by mutex_
  bool quit_ = false;   // guarded by mutex_
  std::atomic<uint64_t> published_{0};
  std::atomic<uint32_t> next_{0};
  std::atomic<uint32_t> busy_{0};
  uint32_t tasks_ = 0;
  Call call_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace k3
