// The backward pass of all problems.
#pragma once

#include "attention/problem.hpp"

namespace ejk::attn {

/// What the backward pass begins with. dout and out are (B, heads, positions, elements); lse is in the order
/// of setup.shape.lse, of the arithmetic's dtype.
struct Saved {
  ArrayView dout, out;
  const void* lse;
};

/// Writes dq, dk, dv: C order, of any float dtype, shaped as q, k, v.
void backward(const Setup& setup, const MaskPlan& plan, const Saved& saved, Array& dq, Array& dk, Array& dv,
              const std::function<void(std::int64_t done, std::int64_t all)>& progress);

}  // namespace ejk::attn
