// Explanations by values alone of what no fault model explains: compare/value_search.hpp.
// tests: tests/verdict/test_fault_search.cpp
#pragma once

#include <cstdint>
#include <vector>

#include "compare/value_search.hpp"
#include "verdict/against.hpp"

namespace ejk::verify {

/// Explains elements of a result with a 1 in `left`, (rows, columns), and sets those to 0. The tolerance is
/// that of 95 % of the rows. Memory: 18 bytes an element. Empty unless the rows are a whole array of
/// array_axes.
ValueExplanations explain_rows(const ResultRows& result, std::vector<std::uint8_t>& left);

/// The largest result, in elements, for explain_rows, and its memory.
inline constexpr std::int64_t kMostValues = std::int64_t{1} << 26;
inline std::int64_t bytes_of_values(std::int64_t elements) {
  return elements <= kMostValues ? 19 * elements : 0;
}

}  // namespace ejk::verify
