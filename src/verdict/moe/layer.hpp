// A given result of a layer of experts beside its reference: the rows of all choices, sums of tokens with any
// weights, and their tolerances (derived in ejk/route.hpp).
// tests: tests/verdict/moe/test_against.cpp
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/elements.hpp"
#include "ejk/matmul_check.hpp"
#include "matmul/moe.hpp"
#include "verdict/against.hpp"

namespace ejk::moe_verdict {

/// out and its tolerances, (tokens, hidden).
struct Expected {
  std::vector<double> out, allowed;
};

struct ActualLayer {
  const MoeOperands& operands;
  Activation activation;
  const ArrayView& given;
  DType sums;          // of the reference
  Array squared_down;  // float32

  ActualLayer(const MoeOperands& of, Activation act, const ArrayView& result);

  std::int64_t tokens() const { return operands.x.shape[0]; }
  std::int64_t hidden() const { return operands.x.shape[1]; }
  std::int64_t choices() const { return operands.topk_ids.shape[1]; }  // of a token
  std::int64_t inter() const { return operands.gate.shape[2]; }

  /// With the steps of a fault.
  Expected expected(const matmul::MoeSteps& steps, const MoeProgress& progress = {}) const;
};

/// The rows of `given` (tokens, columns) without what they should be; `column` and `columns` name an element of a row.
verify::ResultRows rows_of_tokens(const char* name, const ArrayView& given, const char* column,
                                  const char* columns);

/// Adds explanations by known faults.
void explain(const ActualLayer& it, const Expected& right, const std::vector<OtherWeights>& others,
             const verify::ResultRows& rows, const verify::RowCounts& counts, Against& against);

}  // namespace ejk::moe_verdict
