// A progress bar on stderr with the time left, for work that takes two seconds and more.
#pragma once

#include <chrono>
#include <cstdint>

#include "terminal.hpp"

namespace ejk::app {

class ProgressBar {
 public:
  explicit ProgressBar(When when);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Draws, when it is time to. By one thread at a time.
  void operator()(std::int64_t done, std::int64_t all);

  /// Takes the bar off the screen.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  bool enabled_;
  bool at_once_;
  bool drawn_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
};

/// Takes a bar off the screen from within a signal handler.
void clear_progress_from_signal() noexcept;

}  // namespace ejk::app
