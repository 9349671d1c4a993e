// Verdicts on a layer of experts (ejk/moe.hpp) and on a router: another implementation's result, and its known faults.
//
// With the unit roundoff u of the wider-spaced type of x and
// the result (2⁻⁸ of bfloat16, 2⁻¹¹ of float16, 2⁻²⁴ of float32), half of its smallest number u₀, v = 2⁻²⁴ of
// float32 sums over hidden or inter terms, and of each choice j of a token
//   g, l, h, y   the products with gate and up, the input and the result of that with down
//   G² = u² g² + u₀² + v² hidden/4 (2 g² + mean g²), L² of l alike
//   E² = (activation'(g) l)² G² + activation(g)² L² + 3 (u h)² + 3 u₀² + v² (3 + |g|)² h²
//   Y² = Σ (E² + v² inter/4 h²) down² + v² inter/4 y²
// an element of out is right if its error is at most ε |out| + u₀ of its own type and
//   4 √(Σ_j w² Y² + 64 v² w² y²) + min(4 u √(3 Σ_j w² y² + (k − 1)/2 (Σ_j w² y² + out²)), (k + 2) u Σ_j |w y|)
// for a kernel that rounds the products, the activation and the weighted rows to the type, and sums in it, in any
// order. Rounding errors are independent: a sum of terms t is off by more than 4 u √(Σ t²) as rarely as a
// normal number beyond 9 deviations.
#pragma once

#include <cstdint>
#include <vector>

#include "ejk/against.hpp"
#include "ejk/array.hpp"
#include "ejk/moe.hpp"
#include "ejk/route.hpp"

namespace ejk {

/// `given`: of another implementation, (tokens, hidden) of any float type. `others` are tried besides the known
/// faults. The reference is float64, of large 16-bit layers float32.
Against compare_moe(const MoeOperands& operands, Activation activation, const ArrayView& given,
                    const std::vector<OtherWeights>& others, Explain explain,
                    const MoeProgress& progress = {});
std::int64_t bytes_to_compare_moe(const MoeTypes& types, Explain explain);

/// `given`: weights (tokens, k) of another router for the choices `topk_ids`. They are right within 32 · 2⁻²⁴, as of
/// scores in float32, and the rounding of their own type.
Against compare_weights(const ArraySource& logits, const RouterSettings& settings,
                        const ArraySource& topk_ids, const ArrayView& given, Explain explain);

}  // namespace ejk
