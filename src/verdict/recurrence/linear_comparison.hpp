// Results of another implementation of linear attention as rows that are compared with the reference.
// tests: tests/verdict/recurrence/test_linear.cpp
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "ejk/recurrence_check.hpp"
#include "verdict/against.hpp"
#include "verdict/recurrence/linear_faults.hpp"
#include "verdict/recurrence/linear_truth.hpp"

namespace ejk::recurrence_verdict {

struct LinearRowsCompared {
  verify::ResultRows rows;
  std::function<RowBound(std::int64_t row)> bound_of;
  /// What FaultyResult returns for the row.
  std::function<double(FaultyResult& result, std::int64_t row, Columns columns, double* values)> predict;
  /// The sequence and head of the state that a row is of, and its token: the last one for a final state. Sequence −1: a
  /// slot that none writes.
  std::function<std::array<std::int64_t, 3>(std::int64_t row)> cell_of;
  /// The row in what a fault's solve() returns for some tokens, of another token of its head.
  std::function<const double*(const HeadResult& result, std::int64_t tokens, std::int64_t token,
                              std::int64_t row)>
      row_in;
  bool has_tokens = false;  // rows are of tokens, and not of states
};

/// The type of q, k and v where all have 16 bits: bfloat16 where one is.
std::optional<FactorType> usual_factors(const LinearAttentionArrays& arrays);

class LinearComparison {
 public:
  /// `factors`: absent, the usual ones.
  LinearComparison(const LinearAttentionArrays& arrays, const LinearAttentionSettings& settings,
                   std::optional<FactorType> factors);

  /// `given` has the shape of the plan's out, of final_state; it and this outlive the result.
  LinearRowsCompared rows_of_out(const ArrayView& given) const;
  LinearRowsCompared rows_of_final_state(const ArrayView& given) const;

  const recurrence::LinearPlan plan;
  const recurrence::LinearInputs inputs;
  const LinearTruth truth;
};

}  // namespace ejk::recurrence_verdict
