// Statistics of an array: minimum, maximum, mean, counts of NaN and infinities, and histograms.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "ejk/array.hpp"

namespace ejk {

/// Exact integers, std::uint64_t if std::int64_t does not hold them; nothing if there is no number.
using Extreme = std::variant<std::monostate, std::int64_t, std::uint64_t, double>;

struct Statistics {
  std::int64_t elements = 0;
  Extreme minimum;  // of those that are not NaN; infinities count
  Extreme maximum;
  std::optional<double> mean;  // of the same
  std::int64_t nans = 0;
  std::int64_t infinities = 0;
};

/// One parallel pass; bool counts as 0 and 1. Sums are double, in an order independent of the threads.
/// Memory: a chunk for each thread. `progress(done, all)` counts elements, one call at a time.
Statistics statistics_of(const ArraySource& source,
                         const std::function<void(std::int64_t, std::int64_t)>& progress = {});

/// Elements in [from, to) or, for integers and in the last bin, [from, to].
struct Bin {
  double from = 0, to = 0;
  std::int64_t elements = 0;
};

/// Bins of equal width over the finite range, or one for each of few integers; one more pass. NaN is in none.
std::vector<Bin> histogram_of(const ArraySource& source, const Statistics& statistics,
                              std::int64_t most_bins = 16,
                              const std::function<void(std::int64_t, std::int64_t)>& progress = {});

std::int64_t statistics_bytes(const ArraySource& source);

}  // namespace ejk
