// A grouped product against a plain evaluation of it in higher precision: is every element as near as its
// arithmetic allows?
//
// An element out with the reference R, X = Σ |a|·|b| over its K products (and |existing_out| where that is
// added) is right if
//   |out − R| ≤ max(64, K) · u · X + ε · |R| + t
// where u is 2⁻²⁴ (2⁻⁵³ with a float64 factor), ε the spacing above 1 of the result's type, and t what is
// lost below the smallest numbers: half of the smallest positive result, and K + 1 of the smallest that the
// arithmetic knows. With bfloat16 factors, whose instructions may take subnormal ones for 0, the products of
// those are given up whole. NaN is right where the reference is NaN, an infinity where the reference is the
// same one or, within the tolerance, beyond the result's type; where X passes the arithmetic's range, so may
// the sums. Rows in which nothing is computed equal 0 or existing_out exactly. Source: the usual bound on the
// rounding of sums; spec of the golden files.
#pragma once

#include <cstdint>
#include <optional>

#include "ejk/array.hpp"
#include "ejk/grouped_matmul.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// One element of a result, what the reference has there, and how far apart they are.
struct MatmulDifference {
  Shape index;
  double value = 0;
  double reference = 0;
  double size = 0;  // infinite where only one is a number
};

/// What GroupedMatmulPlan::check found. It takes some numbers of memory for each row of rhs, and gives the same
/// answer for any number of threads.
struct MatmulCheck {
  /// Small products are evaluated whole, of larger ones (2³⁰ floating-point operations, 2²⁷ with a float64
  /// factor) some rows: the first and the last one of each group, some between them, and all that fail the
  /// test of all rows by a random vector.
  enum class Method { every_element, sampled_rows };

  Method method = Method::every_element;
  DType dtype = DType::float32;     // of the result
  std::int64_t elements = 0;        // of the result
  std::int64_t compared = 0;        // with the reference, one by one
  std::int64_t compared_other = 0;  // those among them where nothing is computed
  std::int64_t nonzero = 0;         // of those compared, not 0 in the result or the reference
  std::int64_t violating = 0;       // of those compared

  /// With sampled rows, every row r of a group: out[r] · x against lhs[r] · (rhs · x), where x is 1 or −1 at
  /// random and the tolerance follows from that of the elements (a right row fails less than once in 10¹⁷).
  std::int64_t rows_by_vector = 0;
  std::int64_t rows_refuted = 0;  // that fail and were too many to be compared
  std::int64_t rows_open = 0;     // with NaN or infinities, of which the test says nothing, not compared

  /// The largest differences, right or not; relative only where the reference is not 0. ulps are spacings of
  /// the result's type at the reference.
  std::optional<MatmulDifference> largest_absolute, largest_relative, largest_ulps;
  /// The violating element that is furthest beyond its tolerance; its size is absolute.
  std::optional<MatmulDifference> worst;

  bool passed() const { return violating == 0 && rows_refuted == 0; }
};

Report describe(const MatmulCheck& check);

}  // namespace ejk
