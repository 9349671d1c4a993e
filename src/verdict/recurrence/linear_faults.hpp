// Known faults of kernels of linear attention, each the computation of a sequence's head with one change. Cost of a head:
// once or twice the float64 computation, token by token ten times.
// tests: tests/verdict/recurrence/test_linear.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "recurrence/linear_plan.hpp"
#include "verdict/recurrence/linear_head_problem.hpp"
#include "verdict/recurrence/linear_truth.hpp"

namespace ejk::recurrence_verdict {

/// What a kernel with the fault reads: a copy that may differ in settings, sequences, slots and parameters.
struct LinearSource {
  recurrence::LinearPlan plan;
  recurrence::LinearInputs inputs;
};

struct LinearFault {
  std::string kind, text;
  std::shared_ptr<const LinearSource> source;
  /// The result of a sequence that is no padding by `source`, of its first tokens.
  std::function<HeadResult(std::int64_t sequence, std::int64_t head, std::int64_t tokens)> solve;
  bool is_subtle = false;      // a rounding: differences from it are as large as those of a right kernel
  std::int64_t sequence = -1;  // the only one it is about; −1: all
  std::shared_ptr<const void> owner = {};  // of what solve() uses
};

/// Those that the settings admit. All arguments outlive the result. `bad`: sequences with elements out of tolerance.
std::vector<LinearFault> linear_faults(const recurrence::LinearPlan& plan,
                                       const recurrence::LinearInputs& inputs, const LinearTruth& truth,
                                       const std::vector<std::int64_t>& bad);

/// The last sequence that begins at a token of an entry, or before it.
std::int64_t sequence_at(const recurrence::LinearPlan& plan, std::int64_t entry, std::int64_t token);

using Columns = std::span<const std::int64_t>;

/// All results of a kernel with a fault, computed by sequence and head where they are used, by several threads.
class FaultyResult {
 public:
  /// `fault` outlives it.
  explicit FaultyResult(const LinearFault& fault);

  /// Elements of a row of out, and the largest one of its head; below 0: nothing is predicted.
  double out(std::int64_t entry, std::int64_t token, std::int64_t head, Columns columns, double* values);
  /// The same for row `row` of a final state.
  double state(std::int64_t slot, std::int64_t head, std::int64_t row, Columns columns, double* values);

 private:
  struct Cell {
    std::once_flag computed;
    HeadResult result;
    double largest = 0, largest_state = 0;
  };
  const Cell& cell_of(std::int64_t sequence, std::int64_t head);

  const LinearFault& fault_;
  const recurrence::LinearPlan& plan_;
  std::int64_t shared_;
  std::vector<Cell> cells_;
  std::vector<std::int64_t> writers_;
};

}  // namespace ejk::recurrence_verdict
