// Percentiles, interpolated as in NumPy's "linear" method, and histograms with the bins [2^k, 2^(k+1)).
// tests: tests/core/test_distribution.cpp
#include "core/distribution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace ejk::core {

double percentile(const std::vector<std::int64_t>& sorted, double percent) {
  const double place = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const auto low = static_cast<double>(sorted[below]), high = static_cast<double>(sorted[above]);
  return low + (place - std::floor(place)) * (high - low);
}

std::string Bin::range() const {
  return from == to ? fmt::format("{}", from) : fmt::format("{}-{}", from, to);
}

std::vector<Bin> doubling_bins(const std::vector<std::int64_t>& sorted) {
  const auto width = [](std::int64_t number) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(number)));
  };
  std::vector<Bin> bins;
  auto next = sorted.begin();
  for (int bits = width(sorted.front()); bits <= width(sorted.back()); ++bits) {
    Bin bin;
    bin.from = bits == 0 ? 0 : std::int64_t{1} << (bits - 1);
    bin.to = bits == 0 ? 0 : bin.from + (bin.from - 1);
    for (; next != sorted.end() && *next <= bin.to; ++next)
      ++bin.count, bin.sum += static_cast<double>(*next);
    bins.push_back(bin);
  }
  return bins;
}

}  // namespace ejk::core
