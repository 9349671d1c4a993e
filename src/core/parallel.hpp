// Parallel loops. Work is cut by the problem, so the result is the same for any number of threads; how many
// run is OpenMP's setting (OMP_NUM_THREADS, or what the program set).
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>

namespace ejk::core {

/// Keeps the exception of the smallest index of a parallel region, since none may leave it. Steps of larger
/// indices are skipped from then on.
class FirstError {
 public:
  template <class F>
  void run(std::int64_t index, F&& f) noexcept {
    if (index > failed_.load(std::memory_order_relaxed)) return;
    try {
      f();
    } catch (...) {
#pragma omp critical(ejk_first_error)
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
  std::exception_ptr error_;
};

/// f(i) for 0 ≤ i < n, in any order, on all threads. When some throw, the exception of the smallest i comes
/// out: indices are handed out in order, so none before it is left undone.
template <class F>
void parallel_for(std::int64_t n, F&& f) {
  if (n <= 1) {  // even a team of one costs as much as a small product
    if (n == 1) f(std::int64_t{0});
    return;
  }
  FirstError error;
#pragma omp parallel for schedule(monotonic : dynamic, 1)
  for (std::int64_t i = 0; i < n; ++i) error.run(i, [&] { f(i); });
  error.rethrow();
}

/// work(part, i) for 0 ≤ i < n in any order on `threads` threads, each with a part of its own, made by
/// make_part(); then join(part) for every part, one at a time in any order. join must not depend on which i a
/// part has seen.
template <class MakePart, class Work, class Join>
void parallel_reduce(std::int64_t n, int threads, MakePart&& make_part, Work&& work, Join&& join) {
  FirstError error;
#pragma omp parallel num_threads(threads) if (threads > 1 && n > 1)
  {
    decltype(make_part()) part{};
    error.run(-1, [&] { part = make_part(); });
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t i = 0; i < n; ++i) error.run(i, [&] { work(part, i); });
#pragma omp critical(ejk_parallel_reduce)
    error.run(n, [&] { join(part); });
  }
  error.rethrow();
}

}  // namespace ejk::core
