// Error bounds for softmax weights P, and dS in gradients, that a kernel rounds to 16 bits, and for those that
// it computes in float32. Each rounding has an independent relative error of at most u, so a sum of terms t has
// an error of about λ u √Σ t²; equal keys have equal errors: m of them count as m t². Formulas:
// ejk/against.hpp. Cost: another forward pass, with squares of P and V; for gradients two, and a backward pass; for
// scores of 16 bits two more without values.
// tests: tests/verdict/attention/test_weights.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "attention/problem.hpp"
#include "ejk/attention_check.hpp"
#include "verdict/attention/bounds.hpp"
#include "verdict/attention/reference.hpp"

namespace ejk::attn {

/// λ of out, and of a gradient that sums this many terms: kernels may accumulate gradients in their own type.
inline constexpr double kOffOfOut = 4;
inline double off_of_gradients(std::int64_t terms) {
  return 8 * std::sqrt(std::max(1.0, static_cast<double>(terms) / 2048));
}

/// The error bound of each element: `relative` |R| of its array, and its term.
struct WeightRounding {
  double unit = 0;               // u: 2⁻⁸ of bfloat16, 2⁻¹¹ of float16; 0: of float32
  std::vector<double> relative;  // of each array of `terms`
  /// In the shapes of results, float32: out, and lse for rounded scores; dq, dk, dv, dbias and dsinks. Of float32:
  /// out and lse; dq, dk and dv, 0 where a sum is not finite. Empty: there is no such bound.
  std::vector<Array> terms;

  bool is_of_float32() const { return unit == 0 && !terms.empty(); }
};

/// Nothing for float32 weights and scores, and float64 arithmetic. `dout`: of gradients; `saved`: their lse and δ,
/// or null.
WeightRounding rounding_of_weights(const CheckedArguments& setup, const MaskPlan& blocks,
                                   const SoftmaxTypes& types, const std::optional<ArrayView>& dout,
                                   const Reference::Saved* saved = nullptr);

/// The whole error of float32 arithmetic; nothing for float64. `bounds`: of the same arguments; Σ P of each key
/// for gradients. Cost: for gradients the scores are computed once more than for rounded weights.
WeightRounding rounding_of_float32(const CheckedArguments& setup, const MaskPlan& blocks,
                                   const Bounds& bounds, const std::optional<ArrayView>& dout,
                                   const Array& weights_of_keys);

double bytes_of_weight_rounding(const CheckedArguments& setup);

}  // namespace ejk::attn
