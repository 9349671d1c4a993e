// Known faults of kernels of linear attention, each the computation of a sequence's head with one change. Cost of a head:
// once or twice the float64 computation, token by token ten times.
// tests: tests/verdict/recurrence/test_linear.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

}  // namespace ejk::recurrence_verdict
