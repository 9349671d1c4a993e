// Are two arrays the same, within a tolerance, and if not, where and by how much.
//
// Shapes must be identical; dtypes may differ. An element of `actual` agrees with the one of `expected`,
// which is the reference, if both are equal (infinities of one sign too), both are NaN (with NanEqual::yes),
// or both are finite and |a - e| <= atol + rtol·|e|. That is computed in the arrays' common float type:
// float16, bfloat16, float32 or float64; two different 16-bit types meet in float32, integers are taken as
// float32, but the difference of two integers is taken exactly first. Source: ejkernel's assert_allclose as
// documented.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "ejk/array.hpp"
#include "ejk/report.hpp"
#include "ejk/statistics.hpp"

namespace ejk {

enum class NanEqual { no, yes };

struct Tolerance {
  double rtol = 1e-5;
  double atol = 1e-8;
  NanEqual nan = NanEqual::yes;
};

/// Two elements that do not agree.
struct Difference {
  Shape index;
  Extreme actual, expected;
  double amount = 0;
};

struct Comparison {
  bool close = false;
  Shape actual_shape, expected_shape;
  DType actual_dtype = DType::boolean, expected_dtype = DType::boolean;

  // The rest is of arrays of the same shape.
  std::int64_t elements = 0;
  std::int64_t differing = 0;  // elements that do not agree
  std::int64_t both_zero = 0;  // elements that are 0 on both sides
  std::int64_t actual_nans = 0, actual_infinities = 0;
  std::int64_t expected_nans = 0, expected_infinities = 0;
  /// Of the elements that do not agree, the one with the largest |a - e|, the first of equals in C order; NaN
  /// is more than anything.
  std::optional<Difference> largest_absolute;
  /// The same by |a - e| / |e|, where both are finite and e is not 0.
  std::optional<Difference> largest_relative;
  /// The same by the number of floats between them in the common float type, where neither is NaN. None for
  /// integers.
  std::optional<Difference> largest_ulps;

  bool same_shape() const { return actual_shape == expected_shape; }
};

/// One pass over both, piece by piece, on all threads where the sources allow. `progress(done, all)` counts
/// elements. Memory: a piece of either for each thread. Throws Error{usage} for a tolerance that is negative
/// or NaN.
Comparison compare_arrays(const ArraySource& actual, const ArraySource& expected,
                          const Tolerance& tolerance = {},
                          const std::function<void(std::int64_t, std::int64_t)>& progress = {});

/// Bytes that this takes beside the sources' own, at most.
std::int64_t compare_bytes(const ArraySource& actual, const ArraySource& expected);

/// compare_arrays, and Error{input} that says what is wrong when shapes differ or elements do not agree.
Comparison assert_allclose(const ArraySource& actual, const ArraySource& expected,
                           const Tolerance& tolerance = {});

/// All that was found, with the worst elements. Warnings: dtypes differ; nearly all elements are 0 on both
/// sides, so that agreement proves little.
Report describe(const Comparison& comparison);

/// Both sides are 0 in nine elements of ten or more, and not all of it is bool.
bool proves_little(const Comparison& comparison);

}  // namespace ejk
