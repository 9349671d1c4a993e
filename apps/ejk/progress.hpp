// A progress bar on stderr with the remaining time, drawn after two seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "terminal.hpp"

namespace ejk::app {

class ProgressBar {
 public:
  explicit ProgressBar(When when);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Draws the bar, if it is due. Not thread-safe.
  void operator()(std::int64_t done, std::int64_t all);

  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  bool enabled_;
  bool at_once_;
  bool drawn_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
};

/// The bar, the percentage and the remaining time after `elapsed` seconds, as far as they fit.
std::string progress_line(double fraction, double elapsed, int columns);

void clear_progress_from_signal() noexcept;

}  // namespace ejk::app
