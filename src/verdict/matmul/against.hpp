// Comparison of grouped products with the reference: the library's, and another implementation's with its
// explanations. The thresholds are parameters, so that tests can have samples of small ones.
#pragma once

#include <cstdint>
#include <vector>

#include "ejk/against.hpp"
#include "ejk/matmul_check.hpp"
#include "matmul/problem.hpp"
#include "verdict/against.hpp"
#include "verdict/matmul/tolerance.hpp"

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

struct ActualProduct {
  const Problem& problem;
  const Operands& operands;
  const ArrayView& given;
  std::vector<GroupProduct> products;
  Tolerance tolerance;

  ActualProduct(const Problem& p, const Operands& arrays, const ArrayView& result,
                Accumulator accumulator = Accumulator::float32);

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
                const CheckEffort& effort = {}, const std::vector<std::string>& tiles = {},
                Accumulator accumulator = Accumulator::float32, const OtherResults& other = {});

std::int64_t compare_bytes(const Problem& problem, Explain explain);

/// Adds explanations of the elements out of tolerance by fault models.
void explain(const ActualProduct& given, const verify::ResultRows& rows, const verify::RowCounts& counts,
             Against& against);

}  // namespace ejk::matmul
