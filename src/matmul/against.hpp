// A grouped product of another implementation: its comparison with the reference, and explanations.
#pragma once

#include <cstdint>
#include <vector>

#include "ejk/against.hpp"
#include "matmul/check.hpp"
#include "matmul/problem.hpp"
#include "matmul/tolerance.hpp"

namespace ejk::matmul {

struct ActualProduct {
  const Problem& problem;
  const Operands& operands;
  const ArrayView& given;
  std::vector<GroupProduct> products;
  Tolerance tolerance;

  ActualProduct(const Problem& p, const Operands& arrays, const ArrayView& result);

  std::int64_t columns() const { return problem.n; }
  std::int64_t rows() const {
    return problem.cut == Problem::Cut::rows ? problem.m : problem.groups * problem.k;
  }
  bool adds() const { return operands.existing_out && problem.existing == Existing::add; }
  /// Of a row of the result: its group; −1: it belongs to none.
  std::int64_t group_of(std::int64_t row) const;
  const GroupProduct* product_of(std::int64_t row) const;
};

/// `own`: the library's result; `given`: of any float dtype. Throws Error{input} for another shape or type.
Against compare(const Problem& problem, const Operands& operands, const ArrayView& own,
                const ArrayView& given, Explain explain, const WorkProgress& progress,
                const CheckEffort& effort = {}, const std::vector<std::string>& tiles = {});

std::int64_t compare_bytes(const Problem& problem, Explain explain);

}  // namespace ejk::matmul
