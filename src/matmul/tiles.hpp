// Tiles of a group, the range of computed groups, and tile sizes for comparison.
// tests: tests/matmul/test_groups.cpp
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>

#include "core/checked.hpp"
#include "ejk/groups.hpp"

namespace ejk::matmul {

inline std::int64_t tiles_of(std::int64_t begin, std::int64_t end, std::int64_t tm, EmptyGroups empty) {
  if (end == begin) return empty == EmptyGroups::visit ? 1 : 0;
  return core::ceil_div(end, tm) - begin / tm;
}

inline std::int64_t groups_wanted(std::int64_t groups, const GroupMetadataOptions& options) {
  const std::int64_t rest = groups - options.start_group;
  return std::min(rest, options.num_nonzero_groups.value_or(rest));
}

/// A quarter of the rows of a tile to four times as many.
inline std::set<std::int64_t> neighbours(std::int64_t tm) {
  std::set<std::int64_t> sizes{tm};
  for (const std::int64_t part : {2, 4})
    if (tm >= part) sizes.insert(tm / part);
  for (const std::int64_t times : {2, 4})
    if (const auto size = core::checked_mul(tm, times)) sizes.insert(*size);
  return sizes;
}

}  // namespace ejk::matmul
