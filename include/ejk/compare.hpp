// Are two arrays the same, within a tolerance, and if not, where and by how much.
//
// Shapes must be identical; dtypes may differ. An element of `actual` agrees with the one of `expected`,
// which is the reference, if both are equal (infinities of one sign too), both are NaN (with NanEqual::yes),
// or both are finite and |a - e| <= atol + rtol·|e|. That is computed in the arrays' common float type:
// float16, bfloat16, float32 or float64; two different 16-bit types meet in float32, integers are taken as
// float32, but the difference of two integers is taken exactly first. Source: ejkernel's assert_allclose as
// documented; the tolerances of the types are those of PyTorch's assert_close for 16 bits, ejkernel's for others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/report.hpp"
#include "ejk/statistics.hpp"

namespace ejk {

enum class NanEqual { no, yes };

/// One number of two arrays, over pairs of finite elements: the cosine between them; the ratio of signal to noise,
/// 10 log₁₀(Σ e² / Σ (a − e)²) decibels; or rel, Σ (a − e)² / Σ (a² + e²), which is 1 − 2 Σ a e / Σ (a² + e²).
enum class Metric { cosine, snr, rel };
struct MetricLimit {
  Metric metric = Metric::cosine;
  double limit = 0;  // the least of a cosine and of decibels, the most of rel
};

/// When elements agree, and arrays are close.
///
/// rtol, atol: by default those of the dtypes. max_ulp: the largest difference in units in the last place; 0
/// and −0 differ by 0. Units are those of the common type, of two float types those of the coarser at the
/// expected element, of integers 1. It replaces the default rtol and atol; where one of these is given both
/// rules apply.
///
/// allowed_count, allowed_share: elements that may disagree, the larger of both. None of them may differ by
/// more than hard_atol + hard_rtol |e|, where one of these is given, nor be NaN, or another infinity, on one
/// side alone.
///
/// metric: within its limit, and no element NaN, or another infinity, on one side alone. It replaces the
/// rules for elements unless rtol, atol or max_ulp is given; a hard limit then holds for all elements.
struct Tolerance {
  std::optional<double> rtol = std::nullopt;
  std::optional<double> atol = std::nullopt;
  NanEqual nan = NanEqual::yes;
  std::int64_t allowed_count = 0;
  double allowed_share = 0;
  std::optional<MetricLimit> metric = std::nullopt;
  std::optional<std::int64_t> max_ulp = std::nullopt;
  std::optional<double> hard_rtol = std::nullopt, hard_atol = std::nullopt;

  /// Elements are held to rtol and atol.
  bool by_size() const { return !max_ulp || rtol || atol; }
  bool has_hard_limit() const { return hard_rtol || hard_atol; }
};

/// That of the coarser of two dtypes: bfloat16 1.6e-2 and 1e-5, float16 1e-3 and 1e-5, float32 and float64 1e-5
/// and 1e-8, integers and bool 0 and 0.
struct DefaultTolerance {
  double rtol = 0, atol = 0;
};
DefaultTolerance default_tolerance(DType actual, DType expected);

/// Two elements, and how far they are apart.
struct Difference {
  Shape index;
  Extreme actual, expected;
  double amount = 0;
};

struct Comparison {
  bool close = false;
  double rtol = 0, atol = 0;  // those that were used
  std::optional<std::int64_t> max_ulp = {};
  bool by_size = true;  // rtol and atol were used
  Shape actual_shape, expected_shape;
  DType actual_dtype = DType::boolean, expected_dtype = DType::boolean;

  // The rest is of arrays of the same shape.
  std::int64_t elements = 0;
  std::int64_t differing = 0;  // elements that do not agree
  /// Of these, elements beyond the hard limit, and the first of them; none where there is no such limit.
  std::optional<std::int64_t> beyond_hard = {};
  std::optional<Shape> first_beyond_hard = {};
  /// What keeps arrays of one shape from being close: "elements", "hard limit", "metric"; and of how many of
  /// these.
  std::vector<std::string> failed = {};
  int conditions = 1;
  std::int64_t both_zero = 0;  // elements that are 0 on both sides
  std::int64_t finite = 0;     // elements that are finite on both sides
  std::int64_t actual_nans = 0, actual_infinities = 0;
  std::int64_t expected_nans = 0, expected_infinities = 0;
  /// NaN on one side alone. An infinity that is not the same one on the other side, where neither is NaN.
  std::int64_t one_sided_nans = 0, one_sided_infinities = 0;
  std::optional<Shape> first_one_sided_nan, first_one_sided_infinity;
  /// Of the elements that do not agree, the one with the largest |a - e|, the first of equals in C order; NaN
  /// is more than anything.
  std::optional<Difference> violation;
  /// Of all pairs of finite numbers, whether they agree or not, the one with the largest |a - e|, in the common
  /// float type; 0 where all are equal.
  std::optional<Difference> largest_absolute;
  /// The same by |a - e| / |e|, where e is not 0.
  std::optional<Difference> largest_relative;
  /// The same by the number of floats between them in the common float type. None for integers.
  std::optional<Difference> largest_ulps;
  /// Of all pairs of finite numbers: √(Σ(a - e)² / n), and the metrics. No rms without such a pair, no cosine where one
  /// side is 0, no snr where `expected` is, no rel where both are. snr is infinite where all are equal. The last digits
  /// depend on the instruction set.
  std::optional<double> rms, cosine, snr, rel;

  bool same_shape() const { return actual_shape == expected_shape; }
};

/// One pass over both, piece by piece, on all threads where the sources allow. `progress(done, all)` counts
/// elements. Memory: a piece of either for each thread. Throws Error{usage} for a tolerance that is negative,
/// infinite or NaN, or a max_ulp that is negative.
Comparison compare_arrays(const ArraySource& actual, const ArraySource& expected,
                          const Tolerance& tolerance = {},
                          const std::function<void(std::int64_t, std::int64_t)>& progress = {});

/// Two arrays of many, opened when they are looked at.
struct ArrayPair {
  ArrayType actual, expected;
  /// Not called for shapes that differ.
  std::function<std::shared_ptr<const ArraySource>()> open_actual, open_expected;
};

/// compare_arrays of each pair, in their order, one open at a time. `progress` counts the elements of all.
std::vector<Comparison> compare_pairs(std::span<const ArrayPair> pairs, const Tolerance& tolerance = {},
                                      const std::function<void(std::int64_t, std::int64_t)>& progress = {});

/// Bytes that compare_arrays takes beside the sources' own, at most.
std::int64_t compare_bytes(const ArrayType& actual, const ArrayType& expected);

/// compare_arrays, and Error{input} that says what is wrong when shapes differ or elements do not agree.
Comparison assert_allclose(const ArraySource& actual, const ArraySource& expected,
                           const Tolerance& tolerance = {});

/// All that was found, with the elements that differ most. Warnings: dtypes differ; nearly all elements are 0 on both
/// sides, so that agreement proves little.
Report describe(const Comparison& comparison);

/// Both sides are 0 in nine elements of ten or more, and not all of it is bool.
bool proves_little(const Comparison& comparison);

}  // namespace ejk
