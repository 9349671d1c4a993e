// Parallel loops on OpenMP threads. Work is partitioned by the problem: results are the same for any number
// of threads. If the system starts fewer threads, those do all of it.
// tests: tests/core/test_parallel.cpp
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <list>
#include <mutex>

#include "ejk/threads.hpp"

namespace ejk::core {

/// Threads for `steps` steps of about `work` nanoseconds in all (within a factor of ten): as many as have
/// enough to do, at most threads().
int threads_for(std::int64_t steps, double work);

/// Sets the nanoseconds of work worth dispatching to a thread, and returns the previous value. Tests set 0.
double set_least_work(double nanoseconds);

/// Calls member(), which does not throw, on at most `threads` threads including this one, and waits for all.
/// Inside a parallel region, or if no thread starts, on this thread alone.
void run_threads(int threads, const std::function<void()>& member);

/// Captures the exception of the smallest index; later steps are skipped.
class FirstError {
 public:
  template <class F>
  void run(std::int64_t index, F&& f) noexcept {
    if (index > failed_.load(std::memory_order_relaxed)) return;
    try {
      f();
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      if (index < failed_.load(std::memory_order_relaxed)) {
        error_ = std::current_exception();
        failed_.store(index, std::memory_order_relaxed);
      }
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic<std::int64_t> failed_{std::numeric_limits<std::int64_t>::max()};
  std::mutex mutex_;
  std::exception_ptr error_;
};

/// Reduction: work(part, i) for 0 ≤ i < n in any order on at most `threads` threads, each with its own
/// make_part(); then join(part) in any order. Results must not depend on the partition. The exception of the
/// smallest i is rethrown.
template <class MakePart, class Work, class Join>
void parallel_reduce(std::int64_t n, int threads, MakePart&& make_part, Work&& work, Join&& join) {
  if (threads <= 1 || n <= 1) {
    auto part = make_part();
    for (std::int64_t i = 0; i < n; ++i) work(part, i);
    join(part);
    return;
  }
  FirstError error;
  std::list<decltype(make_part())> parts;
  std::mutex adding;
  std::atomic<std::int64_t> next{0};
  run_threads(threads, [&] {
    std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= n) return;  // no work is left
    error.run(i, [&] {
      std::list<decltype(make_part())> own;
      own.push_back(make_part());
      auto& part = own.back();
      {
        const std::scoped_lock lock(adding);
        parts.splice(parts.end(), own);
      }
      for (; i < n; i = next.fetch_add(1, std::memory_order_relaxed)) error.run(i, [&] { work(part, i); });
    });
  });
  error.rethrow();
  for (auto& part : parts) join(part);
}

/// f(i) for 0 ≤ i < n, in any order, on threads_for(n, work) threads. Exceptions as above.
template <class F>
void parallel_for(std::int64_t n, double work, F&& f) {
  const int threads = threads_for(n, work);
  if (threads <= 1) {
    for (std::int64_t i = 0; i < n; ++i) f(i);
    return;
  }
  FirstError error;
  std::atomic<std::int64_t> next{0};
  run_threads(threads, [&] {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) error.run(i, [&] { f(i); });
  });
  error.rethrow();
}

}  // namespace ejk::core
