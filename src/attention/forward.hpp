// The forward pass of all problems.
#pragma once

#include "attention/problem.hpp"
#include "attention/row_writer.hpp"

namespace ejk::attn {

/// Writes out (of any float dtype, shaped as setup.shape.out) and lse (of the arithmetic's dtype).
void forward(const CheckedArguments& setup, const MaskPlan& plan, const RowWriter& out, void* lse,
             const PairProgress& progress);

}  // namespace ejk::attn
