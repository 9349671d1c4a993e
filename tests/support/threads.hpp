// A number of threads for a scope.
#pragma once

#include "core/parallel.hpp"

/// Sets the number of threads, which then share out the smallest work too; and all back at the end of its
/// life.
class Threads {
 public:
  explicit Threads(int count) : before_(ejk::threads()), least_(ejk::core::set_least_work(0)) {
    ejk::set_threads(count);
  }
  ~Threads() {
    ejk::set_threads(before_);
    ejk::core::set_least_work(least_);
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
  double least_;
};
