// The forward pass of all problems.
#pragma once

#include "attention/problem.hpp"
#include "attention/target.hpp"

namespace ejk::attn {

/// Writes out (of any float dtype, shaped as setup.shape.out) and lse (of the arithmetic's dtype).
void forward(const Setup& setup, const MaskPlan& plan, const Target& out, void* lse,
             const PairProgress& progress);

}  // namespace ejk::attn
