// The bar is drawn again at most ten times a second; the signal handler only writes the bytes that clear it.
#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

namespace ejk::app {

namespace {

constexpr double kFirstAfter = 2;  // seconds
constexpr double kEvery = 0.1;
constexpr int kBarWidth = 30, kBesideBar = 22;  // " 100 %, 59:59 min left" and brackets
constexpr char kClear[] = "\r\x1b[K";

std::atomic<bool> on_screen{false};

std::string time_left(double seconds) {
  const auto s = static_cast<std::int64_t>(std::ceil(seconds));
  return s < 60     ? fmt::format("{} s", s)
         : s < 3600 ? fmt::format("{}:{:02} min", s / 60, s % 60)
                    : fmt::format("{}:{:02} h", s / 3600, s / 60 % 60);
}

}  // namespace

ProgressBar::ProgressBar(When when)
    : enabled_(when == When::always || (when == When::automatic && is_terminal(stderr))),
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
  // A line that wraps could not be cleared again.
  const int width = std::clamp(text_style(stderr, When::never).width - 1 - kBesideBar, 5, kBarWidth);
  const int filled = static_cast<int>(share * width);
  const std::string left =
      share > 0 ? fmt::format(", {} left", time_left(elapsed * (1 - share) / share)) : "";
  const std::string line = fmt::format("{}[{:#<{}}{:{}}] {:3.0f} %{}", kClear, "", filled, "", width - filled,
                                       std::floor(100 * share), left);
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
