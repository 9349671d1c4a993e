// Tiles of a group, and the range of computed groups.
// tests: tests/matmul/test_groups.cpp
#pragma once

#include <algorithm>
#include <cstdint>

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

}  // namespace ejk::matmul
