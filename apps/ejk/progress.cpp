// The bar is drawn again at most ten times a second; the signal handler only writes the bytes that clear it.
#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "progress_line.hpp"
#include "window.hpp"

namespace ejk::app {

namespace {

constexpr double kFirstAfter = 2;  // seconds
constexpr double kEvery = 0.1;
constexpr char kClear[] = "\r\x1b[K";

std::atomic<bool> on_screen{false};

}  // namespace

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

  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(all), 0.0, 1.0);
  const std::string line = kClear + progress_line(share, elapsed, window_width(stderr));
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
