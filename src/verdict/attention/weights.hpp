// Error bounds for softmax weights P, and dS in gradients, that a kernel rounds to 16 bits. Each rounding has
// an independent relative error of at most u, so a sum of terms t has an error of about λ u √Σ t²; equal keys
// have equal errors: m of them count as m t². Formulas: ejk/against.hpp. Cost: another forward pass, with
// squares of P and V; for gradients two, and a backward pass.
// tests: tests/verdict/attention/test_weights.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "attention/problem.hpp"
#include "verdict/attention/reference.hpp"

namespace ejk::attn {

/// λ of out, and of a gradient that sums this many terms: kernels may accumulate gradients in their own type.
inline constexpr double kOffOfOut = 4;
inline double off_of_gradients(std::int64_t terms) {
  return 8 * std::sqrt(std::max(1.0, static_cast<double>(terms) / 2048));
}

/// The error bound of each element: u |R| and this.
struct WeightRounding {
  double unit = 0;           // u: 2⁻⁸ of bfloat16, 2⁻¹¹ of float16; 0: weights are not rounded
  std::vector<Array> terms;  // of out, or of dq, dk, dv and dbias: float32, in their shapes; or empty
};

/// Nothing for float32 weights and float64 arithmetic. `dout`: of gradients; `saved`: their lse and δ, or
/// null.
WeightRounding rounding_of_weights(const CheckedArguments& setup, const MaskPlan& blocks, DType weights,
                                   const std::optional<ArrayView>& dout,
                                   const Reference::Saved* saved = nullptr);

double bytes_of_weight_rounding(const CheckedArguments& setup);

}  // namespace ejk::attn
