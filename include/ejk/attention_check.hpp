// Check of attention results against the reference in float64, with a tolerance for every element.
//
// With the reference R, u = 1 (2⁻²⁹ in float64 arithmetic), ε half of the spacing above 1 of the result's
// type (of a gradient rounded to another type first, of both) and L = |scale| · max‖q‖ · max‖k‖ + max|lse|:
//   out    |out − R| ≤ u (2e-5 |R| + (2e-6 + 2⁻²¹ L) max|v|) + ε |R|
//   lse    |lse − R| ≤ u (1e-5 max(1, |R|) + 2⁻²¹ L)
//   dq     |dq − R| ≤ u (1e-4 max|R| + (1 + L) floor) + ε |R|,
//            floor = 2⁻²² |scale| Dv max|dout| max|v| max|k|
//   dk     the same with max|q| for max|k|, and the floor times Σ P of the key, at least 1
//   dv     the same with the floor 2⁻²² max|dout|
//   dbias  the same with the floor 2⁻²² Dv max|dout| max|v| and Σ P of the pairs that an element sums
//   dsinks the same with Σ P of the sink; lse to base 2: its bound times log₂ e
// plus half of the smallest positive result. Maxima are those of a batch entry (or sequence) and key head,
// for dbias of all that share it, over unmasked queries and keys and the compared rows of R; for out and lse,
// |lse| is the row's own. A number where the reference is NaN or infinite, or the reverse, is wrong.
// ejk/against.hpp has the tolerances of rounded weights. Source: the tolerances of the golden files, and the
// effect of rounded scores.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ejk/attention.hpp"

namespace ejk {

struct AttentionDifference {
  std::string array;
  Shape index;
  double value = 0;
  double reference = 0;
  double size = 0;  // infinite where only one is a number
  double allowed = 0;
};

struct AttentionCheck {
  /// Small problems are evaluated whole, of larger ones some queries and keys, the first and last among them.
  enum class Method { every_element, sampled_rows };

  Method method = Method::every_element;
  std::int64_t elements = 0;  // of all arrays, without padding
  std::int64_t compared = 0;
  std::int64_t nonzero = 0;                  // of those compared, not 0 in the result or the reference
  std::int64_t violating = 0;                // of those compared
  std::vector<AttentionDifference> largest;  // one an array
  std::optional<AttentionDifference> worst;  // the largest difference relative to its tolerance

  bool passed() const { return violating == 0; }
};

/// AttentionPlan::check for a plan of these arrays, with the plan's errors.
AttentionCheck check_attention(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                               const AttentionOptions& options, const ArrayView& out, const ArrayView& lse);

/// The same for gradients. Sampled keys use lse and out of the library's forward pass.
AttentionCheck check_attention_grad(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                                    const ArrayView& dout, const AttentionOptions& options,
                                    const ArrayView& dq, const ArrayView& dk, const ArrayView& dv,
                                    const std::optional<ArrayView>& dbias = std::nullopt,
                                    const std::optional<ArrayView>& dsinks = std::nullopt);

Report describe(const AttentionCheck& check);

}  // namespace ejk
