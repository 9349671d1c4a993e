// Variations of attention by the library's kernels: out and lse, and what a backward pass begins with.
// tests: tests/attention/test_saved.cpp
#pragma once

#include <optional>

#include "attention/problem.hpp"
#include "attention/reference.hpp"
#include "attention/weights.hpp"

namespace ejk::attn {

/// lse and δ of every query. Nothing where the kernels cannot compute the variation: another order of the
/// soft cap, a bias that is multiplied or another one's, rounding, operands of others, a loop that is wrong
/// but for a tile that is left out.
std::optional<Reference::Saved> saved_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                                 const Variation& variation, const ArrayView& dout);

/// The same of out and lse, in the arithmetic of the kernels, with what weights of this type may change out
/// by.
struct VariedForward {
  Array out, lse;
  WeightRounding rounding;
};
std::optional<VariedForward> forward_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                                const Variation& variation, DType weights);

}  // namespace ejk::attn
