// Verdicts on attention results: a check against the reference in float64, with a tolerance for every element,
// and the comparison with another implementation's results and its known faults (ejk/against.hpp).
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
// Comparisons with another implementation have smaller bounds in float32, and larger ones where weights are
// rounded (ejk/against.hpp). Source: the tolerances of the golden files, and the effect of rounded scores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejk/against.hpp"
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

/// `results`: of run() or another implementation, of any float dtype, in the order of the plan. Throws
/// Error{input} for other shapes.
AttentionCheck check_results(const AttentionPlan& plan, const AttentionArrays& arrays,
                             const std::vector<ArrayView>& results);
/// Its workspace.
std::int64_t bytes_to_check(const AttentionPlan& plan);

/// A mask that another implementation may have used, and its name in reports.
struct TriedMask {
  std::string text;
  HeadMasks masks;
};

/// Keys and values that it may have read in place of the plan's, packed sequences of any lengths.
struct TriedKeys {
  std::string text;
  std::shared_ptr<const ArraySource> k, v;  // (tokens, heads, size)
  std::vector<std::int64_t> cu_seqlens;     // of as many sequences
};

/// The same where each sequence has another page of a cache as its last.
struct TriedPages {
  std::int64_t pages = 0;                                                // of the cache
  std::function<TriedKeys(const std::vector<std::int64_t>& last)> keys;  // by sequence; −1: its own
};

/// What explanations try beside known faults. Keys are tried for the forward pass of packed sequences.
struct Tried {
  std::vector<TriedMask> masks;
  std::vector<TriedKeys> keys;
  std::optional<TriedPages> pages;
};

/// Types to which another implementation rounds.
struct SoftmaxTypes {
  std::optional<DType> weights = {};  // P and dS; absent: weights_dtype(plan)
  DType scores = DType::float32;      // q·k, before and after the scale
};

/// Compares every element of `given`, another implementation's results of any float dtype in the order of the
/// plan's, absent ones empty; `own`: of run(). Explain::yes tries those of `tried`, then known faults. `tiles`:
/// two axes of the picture; absent: queries, or keys, and heads. Throws Error{input} about the result for other
/// shapes, of `other`, too, and where that is not finite and should be.
Against compare_results(const AttentionPlan& plan, const AttentionArrays& arrays,
                        const std::vector<ArrayView>& own, const std::vector<std::optional<ArrayView>>& given,
                        Explain explain, const SoftmaxTypes& types = {}, const Tried& tried = {},
                        const std::vector<std::string>& tiles = {}, const OtherResults& other = {});
std::int64_t bytes_to_compare(const AttentionPlan& plan, Explain explain);

/// Adds the largest scores of heads: `given` (heads,), absent if it is not given, beside `own`, of run(). The
/// bound is that of both as an lse to base e. If explanations were tried, a factor of the scale is.
void compare_max_logits(const AttentionPlan& plan, const AttentionArrays& arrays,
                        const std::vector<double>& own, const std::optional<ArrayView>& given,
                        Against& against);

/// Where arithmetic is float32, the type of v if it has 16 bits, or else that of q: values of a quantised cache
/// are decoded to the type of the queries. Otherwise float32.
DType weights_dtype(const AttentionPlan& plan);

/// check_results for a plan of these arrays, with the plan's errors.
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
