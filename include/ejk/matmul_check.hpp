// Verdicts on grouped products: a check against a reference in higher precision, and the comparison with
// another implementation's result and its known faults (ejk/against.hpp).
//
// With the reference R and X = Σ |a|·|b| over K products (and an added |existing_out|), an element is right
// if
//   |out − R| ≤ max(64, K) · u · X + ε · |R| + t
// where u is 2⁻²⁴ (2⁻⁵³ with a float64 factor), ε the spacing above 1 of the result's type, and t the
// underflow: half of the smallest positive result, and K + 1 of the smallest numbers of the arithmetic, and
// products of subnormal bfloat16 factors, which instructions may flush to 0. NaN is right where the reference
// is NaN, an infinity where the reference is the same or, within the tolerance, overflows; where X overflows
// the arithmetic, sums may. Rows without a product equal 0 or existing_out exactly. Source: the standard
// bound on the rounding of sums; spec of the golden files.
//
// Of a layer of experts (ejk/route.hpp), u is the unit roundoff of x or of the result, the larger one (2⁻⁸ of bfloat16,
// 2⁻¹¹ of float16, 2⁻²⁴ of float32), u₀ half of its smallest number, v = 2⁻²⁴ that of sums. With the products g and l
// with gate and up, h = activation(g) l and y = h · down of each of the k choices of a token, and
//   G² = u² g² + u₀² + v² hidden/4 (2 g² + mean g²), L² of l alike
//   E² = (activation'(g) l)² G² + activation(g)² L² + 3 (u² h² + u₀²) + v² (3 + |g|)² h²
//   Y² = Σ (E² + v² inter/4 h²) down² + v² (inter/4 + 64) y²
// an element is right if its error is at most ε |out| + 2 k u₀, half of the smallest result, and
//   4 √(Σ w² Y²) + min(4 u √(3 Σ w² y² + (k − 1)/2 (Σ w² y² + out²)), (k + 2) u Σ |w y|)
// for kernels that round products, activations and weighted rows to the type, and sum in it, in any order. Rounding
// errors are independent: a sum of terms t is off by more than 4 u √(Σ t²) as rarely as a normal number beyond 9
// deviations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ejk/against.hpp"
#include "ejk/array.hpp"
#include "ejk/grouped_matmul.hpp"
#include "ejk/report.hpp"
#include "ejk/route.hpp"

namespace ejk {

/// How a compared kernel sums its products. Hopper's FP8 tensor cores add 32 products to a sum at a time and cut
/// each to 14 bits of the largest of them: fp8 adds such sums to float32 ones after every 128 of K (DeepGEMM,
/// cuBLAS), fp8_fast never. Then the tolerance has S · 2⁻¹³ (X + 16 |R|) more, with X and R as above
/// and S = ⌈min(K, 128) / 32⌉, or ⌈K / 32⌉.
enum class Accumulator : std::uint8_t { float32, fp8, fp8_fast };

struct MatmulDifference {
  Shape index;
  double value = 0;
  double reference = 0;
  double size = 0;  // infinite where only one is a number
};

/// Result of check_results. Memory: some numbers for each row of rhs.
struct MatmulCheck {
  /// Of more than 2³⁰ floating-point operations (2²⁷ with a float64 factor) rows are sampled: the first and
  /// last of each group, some between, and all that fail the test by a random vector.
  enum class Method { every_element, sampled_rows };

  Method method = Method::every_element;
  DType dtype = DType::float32;     // of the result
  std::int64_t elements = 0;        // of the result
  std::int64_t compared = 0;        // with the reference, one by one
  std::int64_t compared_other = 0;  // of those compared, without a product
  std::int64_t nonzero = 0;         // of those compared, not 0 in the result or the reference
  std::int64_t violating = 0;       // of those compared

  /// With sampled rows: out[r] · x against lhs[r] · (rhs · x) for every row r of a group, x random 1 or −1; a
  /// right row fails less than once in 10¹⁷.
  std::int64_t rows_by_vector = 0;
  std::int64_t rows_refuted = 0;  // that fail, too many to be compared
  std::int64_t rows_open = 0;     // with NaN or infinities, which the test excludes, not compared

  /// Right or not; relative only where the reference is not 0. ulps: spacings of the result's type there.
  std::optional<MatmulDifference> largest_absolute, largest_relative, largest_ulps;
  /// The violating element with the largest difference over tolerance; its size is absolute.
  std::optional<MatmulDifference> worst;

  bool passed() const { return violating == 0 && rows_refuted == 0; }
};

/// `out`: of run() or another program; existing_out: its value before. Throws Error{input} for other types than
/// planned.
MatmulCheck check_results(const GroupedMatmulPlan& plan, const ArrayView& lhs, const ArrayView& rhs,
                          const std::optional<ArrayView>& existing_out, const ArrayView& out,
                          const WorkProgress& progress = {});
std::int64_t bytes_to_check(const GroupedMatmulPlan& plan);

/// Compares every element of `given`, another implementation's result of any float dtype; `own`: of run().
/// `tiles`: two axes of the picture; absent: rows and columns. Throws Error{input} about "given" for
/// another shape, about "other" for that of `other`, and where it is not finite and should be.
Against compare_results(const GroupedMatmulPlan& plan, const ArrayView& lhs, const ArrayView& rhs,
                        const std::optional<ArrayView>& existing_out, const ArrayView& own,
                        const ArrayView& given, Explain explain, const WorkProgress& progress = {},
                        const std::vector<std::string>& tiles = {},
                        Accumulator accumulator = Accumulator::float32, const OtherResults& other = {});
std::int64_t bytes_to_compare(const GroupedMatmulPlan& plan, Explain explain);

Report describe(const MatmulCheck& check);

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
