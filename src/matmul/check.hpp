// The check of grouped products, with its thresholds, so that tests can have samples of small ones.
#pragma once

#include <cstdint>

#include "ejk/matmul_check.hpp"

namespace ejk::matmul {

/// Multiply-adds.
struct CheckEffort {
  std::int64_t every_element = std::int64_t{1} << 29;  // up to that all elements are evaluated
  std::int64_t samples = std::int64_t{1} << 29;        // for the rows that are chosen at random or fail
};

MatmulCheck check(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                  const GroupedMatmulOptions& options, const ArrayView& out, const CheckEffort& effort);
MatmulCheck check(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& group_sizes,
                  const TransposedGroupedMatmulOptions& options, const ArrayView& out,
                  const CheckEffort& effort);

/// Adds to a report of a check what it may not prove: that nothing was computed, or that nearly all of the
/// elements compared are 0 on both sides.
void add_doubt(Report& report, bool computed, std::int64_t compared, std::int64_t nonzero);

}  // namespace ejk::matmul
