// Progress bar on a terminal, redrawn at most ten times a second. A line that wraps could not be cleared, so
// narrow terminals get less of it. The signal handler only writes the bytes that clear it.
//
// tests: tests/app/test_progress.cpp
#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>

namespace ejk::app {

namespace {

constexpr double kFirstAfter = 2;  // seconds
constexpr double kEvery = 0.1;
constexpr char kClear[] = "\r\x1b[K";

std::atomic<bool> on_screen{false};

constexpr int kShortestBar = 5, kLongestBar = 30;
constexpr int kBesideBar = 24;  // brackets and " 100 %, 59:59 min left"

std::string time_left(double seconds) {
  const auto s = static_cast<std::int64_t>(std::ceil(seconds));
  return s < 60     ? fmt::format("{} s", s)
         : s < 3600 ? fmt::format("{}:{:02} min", s / 60, s % 60)
                    : fmt::format("{}:{:02} h", s / 3600, s / 60 % 60);
}

}  // namespace

std::string progress_line(double fraction, double elapsed, int columns) {
  const int space = columns - 1;  // terminals wrap where the last column is written
  const int width = std::clamp(space - kBesideBar, kShortestBar, kLongestBar);
  const int filled = static_cast<int>(fraction * width);
  const std::string percent = fmt::format("{:3.0f} %", std::floor(100 * fraction));
  const std::string bar = fmt::format("[{:#<{}}{:{}}] {}", "", filled, "", width - filled, percent);
  const std::string left =
      fraction > 0 ? fmt::format(", {} left", time_left(elapsed * (1 - fraction) / fraction)) : "";
  for (const std::string& line : {bar + left, bar, percent})
    if (static_cast<int>(line.size()) <= space) return line;
  return "";
}

ProgressBar::ProgressBar(When when)
    : enabled_(when == When::always || (when == When::automatic && takes_control(stderr))),
      at_once_(when == When::always) {}

void ProgressBar::operator()(std::int64_t done, std::int64_t all) {
  if (!enabled_ || all <= 0) return;
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  if (elapsed < kFirstAfter && !at_once_) return;
  if (drawn_ && std::chrono::duration<double>(now - last_).count() < kEvery) return;
  last_ = now;
  drawn_ = true;
  on_screen = true;

  const double fraction = std::clamp(static_cast<double>(done) / static_cast<double>(all), 0.0, 1.0);
  const std::string line = kClear + progress_line(fraction, elapsed, terminal_width(stderr));
  (void)!write(STDERR_FILENO, line.data(), line.size());
}

void ProgressBar::clear() {
  if (!drawn_) return;
  drawn_ = false;
  on_screen = false;
  (void)!write(STDERR_FILENO, kClear, sizeof kClear - 1);
}

void clear_progress_from_signal() noexcept {
  if (on_screen) (void)!write(STDERR_FILENO, kClear, sizeof kClear - 1);
}

}  // namespace ejk::app
