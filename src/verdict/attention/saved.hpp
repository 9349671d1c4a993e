// Variations of attention by the library's kernels: results, lse and δ.
// tests: tests/verdict/attention/test_saved.cpp
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "attention/problem.hpp"
#include "verdict/attention/reference.hpp"
#include "verdict/attention/weights.hpp"

namespace ejk::attn {

/// Nothing where the kernels lack the variation: a scaled or foreign bias, rounding, foreign operands, a
/// faulty loop.
std::optional<Reference::Saved> saved_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                                 const Variation& variation, const ArrayView& dout);

/// The same with δ of one entry for all.
Reference::Saved with_delta_of(std::int64_t entry, const CheckedArguments& setup,
                               const Reference::Saved& saved);

/// Results of a varied pass, and the error bounds of rounded weights.
struct ByKernels {
  std::vector<Array> results;  // out and lse, in the form of results, or dq, dk and dv
  WeightRounding rounding;     // of out, or of dq, dk and dv
  Array weights = {};          // of gradients: Σ P of each key, shaped as dk but for a last axis of 1
  double factor = 1;           // that dq, dk and their rounding are still to be multiplied by
};
std::optional<ByKernels> forward_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                            const Variation& variation, const SoftmaxTypes& types);

/// The same of gradients, for lse and δ of `saved`, called once; nothing where it returns null.
std::optional<ByKernels> gradients_by_kernels(const CheckedArguments& setup, const MaskPlan& plan,
                                              const Variation& variation,
                                              const std::function<const Reference::Saved*()>& saved,
                                              const ArrayView& dout, const SoftmaxTypes& types);

/// Σ P of each key (k's shape with a last axis of 1) and, with `of_bias`, of each element of a bias
/// (float64).
struct SummedWeights {
  Array keys, bias;
};
SummedWeights summed_weights(const CheckedArguments& setup, const MaskPlan& plan,
                             const std::vector<double>& lse, bool of_bias);

}  // namespace ejk::attn
