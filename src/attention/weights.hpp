// Error bounds for softmax weights P, and dS in gradients, that a kernel rounds to 16 bits.
//
// Kernels cast P to the type of V before the product. Each rounding has a relative error of at most u,
// independent of the others, so a sum of terms t has an error of about λ u √Σ t². λ is 4, and more for
// gradients, which may be accumulated block by block in their own type. Equal keys have equal weights with
// equal errors: m of them count as m t². Where all weights are equal, the error is u times the result, which
// is added. In gradients dP, and P within dS, may be rounded as well, and δ comes from a rounded out.
// Formulas: ejk/against.hpp.
//
// Cost: another forward pass, with squares of P and V; for gradients two, and a backward pass.
// tests: tests/attention/test_weights.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "attention/problem.hpp"
#include "attention/reference.hpp"

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

/// Of weights of this type, of results for these arguments; of gradients with `dout`, an array of the layout.
/// Nothing for float32 weights, and float64 arithmetic. `saved`: the lse and δ of the gradients;
/// null: those of the arguments.
WeightRounding rounding_of_weights(const CheckedArguments& setup, const MaskPlan& blocks, DType weights,
                                   const std::optional<ArrayView>& dout,
                                   const Reference::Saved* saved = nullptr);

/// Workspace of it.
double bytes_of_weight_rounding(const CheckedArguments& setup);

}  // namespace ejk::attn
