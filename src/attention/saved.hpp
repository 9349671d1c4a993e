// Variations of attention by the library's kernels: results, and the lse and δ that a backward pass starts
// from.
// tests: tests/attention/test_saved.cpp
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "attention/problem.hpp"
#include "attention/reference.hpp"
#include "attention/weights.hpp"

namespace ejk::attn {

/// lse and δ of every query. Nothing where the kernels cannot compute the variation: another order of the
/// soft cap, a bias that is multiplied or another one's, rounding, operands of others, a loop that is wrong
/// but for a tile that is left out.
std::optional<Reference::Saved> saved_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                                 const Variation& variation, const ArrayView& dout);

/// The results of a varied pass in the arithmetic of the kernels, and what weights of this type may change
/// them by.
struct ByKernels {
  std::vector<Array> results;  // out and lse, or dq, dk and dv
  WeightRounding rounding;     // of out, or of dq, dk and dv
  Array weights = {};          // of gradients: Σ P of each key, shaped as dk but for a last axis of 1
  double factor = 1;           // that dq, dk and their rounding are still to be multiplied by
};
std::optional<ByKernels> forward_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                            const Variation& variation, DType weights);

/// The same of gradients, for lse and δ of `saved`, which is called once. Nothing where it returns null, and
/// for other heads, slopes and sequences.
std::optional<ByKernels> gradients_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                              const Variation& variation,
                                              const std::function<const Reference::Saved*()>& saved,
                                              const ArrayView& dout, DType weights);

/// Σ P of each key (shaped as k, but for a last axis of 1) and, with `of_bias`, of each element of a bias
/// (float64, its four axes): backward passes with values and dout of size 1.
struct SummedWeights {
  Array keys, bias;
};
SummedWeights summed_weights(const CheckedArguments& setup, const MaskPlan& plan,
                             const std::vector<double>& lse, bool of_bias);

}  // namespace ejk::attn
