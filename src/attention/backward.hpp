// The backward pass of all problems.
#pragma once

#include "attention/problem.hpp"
#include "attention/row_writer.hpp"

namespace ejk::attn {

/// What the backward pass begins with. dout and out are (B, heads, positions, elements); lse is in the order
/// of setup.shape.lse, of the arithmetic's dtype.
struct Saved {
  ArrayView dout, out;
  const void* lse;
};

/// Writes dq, dk, dv, shaped as q, k, v.
void backward(const CheckedArguments& setup, const MaskPlan& plan, const Saved& saved, const RowWriter& dq,
              const RowWriter& dk, const RowWriter& dv, const PairProgress& progress);

}  // namespace ejk::attn
