// A thread pool for processes forked by io/worker, where OpenMP cannot start, to decode chunks in parallel.
// tests: tests/io/test_helpers.cpp
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

namespace ejk::io {

/// Threads that do what they are given beside the one that has them. (Parallel loops are core/parallel's; but
/// OpenMP does not start threads in a forked process.)
class HelperThreads {
 public:
  /// Starts so many, or as many as the system lets start. They get no signals.
  explicit HelperThreads(int wanted);
  /// What was not begun is never done.
  ~HelperThreads();
  HelperThreads(const HelperThreads&) = delete;
  HelperThreads& operator=(const HelperThreads&) = delete;

  int count() const { return static_cast<int>(threads_.size()); }
  /// A task for one of them; without threads it is done at once. It must not throw.
  void add(std::function<void()> task);
  /// Returns when all tasks are done; this thread does some.
  void wait();

 private:
  static void* run(void* self) noexcept;
  // With `lock` held before and after.
  void do_next(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable some_, done_;
  std::deque<std::function<void()>> tasks_;
  int running_ = 0;
  bool ending_ = false;
  std::vector<pthread_t> threads_;
};

}  // namespace ejk::io
