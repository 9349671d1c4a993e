// How numbers of things (tokens of sequences, rows of groups) are distributed: percentiles, and bins that
// double.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ejk::core {

/// The value below which `percent` of the sorted numbers (at least one) lie, interpolated between neighbours
/// as NumPy does.
double percentile(const std::vector<std::int64_t>& sorted, double percent);

/// The numbers from … to of a histogram.
struct Bin {
  std::int64_t from = 0, to = 0;
  std::int64_t count = 0;  // how many numbers are in it
  double sum = 0;          // and what they come to

  std::string range() const;  // "0", "2-3"
};

/// 0, 1, 2-3, 4-7, …: from the smallest of the sorted numbers (at least one, none negative) to the largest,
/// empty bins too.
std::vector<Bin> doubling_bins(const std::vector<std::int64_t>& sorted);

}  // namespace ejk::core
