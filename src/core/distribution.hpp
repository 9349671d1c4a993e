// Percentiles and histograms with doubling bins, of tokens of sequences or rows of groups.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ejk::core {

/// The percentile of sorted numbers (at least one), interpolated between neighbours as in NumPy.
double percentile(const std::vector<std::int64_t>& sorted, double percent);

/// A bin of a histogram: the numbers from … to.
struct Bin {
  std::int64_t from = 0, to = 0;
  std::int64_t count = 0;  // of numbers in it
  double sum = 0;          // of them

  std::string range() const;  // "0", "2-3"
};

/// 0, 1, 2-3, 4-7, …: from the smallest to the largest of the sorted numbers (at least one, none negative),
/// including empty bins.
std::vector<Bin> doubling_bins(const std::vector<std::int64_t>& sorted);

}  // namespace ejk::core
