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

/// dq, dk and dv, with Σ P of each key, shaped as dk but for a last axis of 1. `saved`: lse and δ of the pass;
/// null: those of the variation. Nothing for other heads, slopes and sequences, too.
struct VariedGradients {
  Array dq, dk, dv, weights;
  WeightRounding rounding;  // of dq, dk and dv
  double factor = 1;        // that dq, dk and their rounding are still to be multiplied by
};
std::optional<VariedGradients> gradients_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                                    const Variation& variation, const Reference::Saved* saved,
                                                    const ArrayView& dout, DType weights);

/// Σ P of each key, of lse in the arithmetic of the kernels: a backward pass with values of size 1.
Array key_weights(const CheckedArguments& setup, const MaskPlan& plan, const Array& lse);

}  // namespace ejk::attn
