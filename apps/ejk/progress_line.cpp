// A line that wraps could not be cleared again, so parts of it are left out where it is narrow.
#include "progress_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace ejk::app {

namespace {

constexpr int kShortestBar = 5, kLongestBar = 30;
constexpr int kBesideBar = 24;  // brackets and " 100 %, 59:59 min left"

std::string time_left(double seconds) {
  const auto s = static_cast<std::int64_t>(std::ceil(seconds));
  return s < 60     ? fmt::format("{} s", s)
         : s < 3600 ? fmt::format("{}:{:02} min", s / 60, s % 60)
                    : fmt::format("{}:{:02} h", s / 3600, s / 60 % 60);
}

}  // namespace

std::string progress_line(double share, double elapsed, int columns) {
  const int space = columns - 1;  // terminals wrap where the last column is written
  const int width = std::clamp(space - kBesideBar, kShortestBar, kLongestBar);
  const int filled = static_cast<int>(share * width);
  const std::string percent = fmt::format("{:3.0f} %", std::floor(100 * share));
  const std::string bar = fmt::format("[{:#<{}}{:{}}] {}", "", filled, "", width - filled, percent);
  const std::string left =
      share > 0 ? fmt::format(", {} left", time_left(elapsed * (1 - share) / share)) : "";
  for (const std::string& line : {bar + left, bar, percent})
    if (static_cast<int>(line.size()) <= space) return line;
  return "";
}

}  // namespace ejk::app
