// Row samples, where all rows take too long: one row of each of equal parts.
// tests: tests/compare/test_sample.cpp
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/splitmix64.hpp"

namespace ejk::verify {

/// The first, the last, and `more` between them, one at random from each of as many equal parts; all if there
/// are no more. Deterministic for a seed.
inline std::vector<std::int64_t> sample_rows(std::int64_t rows, std::int64_t more, std::int64_t seed = 0) {
  const std::int64_t between = std::max<std::int64_t>(rows - 2, 0);
  if (rows <= 2 || more >= between) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  const auto part = [&](std::int64_t n) {
    return 1 + static_cast<std::int64_t>(static_cast<double>(between) * static_cast<double>(n) /
                                         static_cast<double>(more));
  };
  std::vector<std::int64_t> chosen{0};
  for (std::int64_t i = 0; i < more; ++i) {
    const std::int64_t begin = part(i), length = std::max<std::int64_t>(part(i + 1) - begin, 1);
    chosen.push_back(begin +
                     static_cast<std::int64_t>(core::splitmix64(static_cast<std::uint64_t>(seed + i)) %
                                               static_cast<std::uint64_t>(length)));
  }
  chosen.push_back(rows - 1);
  return chosen;
}

}  // namespace ejk::verify
