// What the elements of an array come to: the least, the largest, the mean, and how many are no numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "ejk/array.hpp"

namespace ejk {

/// Integers exactly, std::uint64_t where std::int64_t does not hold them; nothing where there is no number.
using Extreme = std::variant<std::monostate, std::int64_t, std::uint64_t, double>;

struct Statistics {
  std::int64_t elements = 0;
  Extreme minimum;  // of those that are not NaN; infinities count
  Extreme maximum;
  std::optional<double> mean;  // of the same
  std::int64_t nans = 0;
  std::int64_t infinities = 0;
};

/// One pass over the elements, piece by piece, on all threads where the source allows; bool counts as 0
/// and 1. Sums are taken in double precision in one order, so the result is the same for any number of
/// threads. Memory: a piece for each thread. `progress(done, all)` counts elements; called by one thread at a
/// time.
Statistics statistics_of(const ArraySource& source,
                         const std::function<void(std::int64_t, std::int64_t)>& progress = {});

/// Elements from `from` on: up to `to` itself for whole numbers and in the last bin, else below it.
struct Bin {
  double from = 0, to = 0;
  std::int64_t elements = 0;
};

/// Equally wide bins from the least to the largest element, which `statistics` knows; one more pass. Whole
/// numbers of few values get a bin each. NaN is in none; there are no bins where there is no finite range.
std::vector<Bin> histogram_of(const ArraySource& source, const Statistics& statistics,
                              std::int64_t most_bins = 16,
                              const std::function<void(std::int64_t, std::int64_t)>& progress = {});

/// Bytes that either takes beside the source's own, at most.
std::int64_t statistics_bytes(const ArraySource& source);

}  // namespace ejk
