// The check of grouped products, with its thresholds, so that tests can have samples of small ones.
#pragma once

#include <cstdint>

#include "ejk/matmul_check.hpp"
#include "matmul/problem.hpp"

namespace ejk::matmul {

/// Multiply-adds.
struct CheckEffort {
  std::int64_t every_element = std::int64_t{1} << 29;  // up to that all elements are evaluated
  std::int64_t samples = std::int64_t{1} << 29;        // for the rows that are chosen at random or fail
};

/// `out` against the product; the operands and `out` are of the problem's types.
MatmulCheck check(const Problem& problem, const Operands& operands, const ArrayView& out,
                  const WorkProgress& progress, const CheckEffort& effort = {});

std::int64_t check_bytes(const Problem& problem);

}  // namespace ejk::matmul
