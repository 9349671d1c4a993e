// Tolerances of grouped products (derived in ejk/matmul_check.hpp), and views of results as matrices.
// tests: tests/verdict/matmul/test_check.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "compare/float_type.hpp"
#include "core/checked.hpp"
#include "ejk/grouped_matmul.hpp"
#include "verdict/matmul/reference.hpp"

namespace ejk::matmul {

struct Tolerance {
  verify::FloatType result;
  double unit;             // of rounding, in the arithmetic
  double least;            // what it may lose at the lower end of its range, each time
  double most;             // the upper end
  double evaluation_unit;  // of rounding, in the reference
  double flushed;          // how often subnormal factors count, so that they are given up whole
  Accumulator accumulator = Accumulator::float32;

  static Tolerance of(const ArrayView& lhs, const ArrayView& rhs, DType result) {
    const verify::FloatType type = verify::float_type(result);
    if (precision_for(lhs, rhs) == Precision::extended)
      return {type,
              0x1p-53,
              0x1p-1074,
              std::numeric_limits<double>::max(),
              static_cast<double>(std::numeric_limits<long double>::epsilon()),
              1};
    if (lhs.dtype == DType::bfloat16 && rhs.dtype == DType::bfloat16)
      return {type, 0x1p-24, 0x1p-126, 0x1.FFFFFEp127, 0x1p-53, 0x1p18};
    return {type, 0x1p-24, 0x1p-149, 0x1.FFFFFEp127, 0x1p-53, 1};
  }
  /// Of a given result: one that is not float64 may be computed in float32, whatever the factors are.
  static Tolerance of_given(const ArrayView& lhs, const ArrayView& rhs, DType result) {
    if (result == DType::float64 || precision_for(lhs, rhs) != Precision::extended)
      return of(lhs, rhs, result);
    return {verify::float_type(result), 0x1p-24, 0x1p-149, 0x1.FFFFFEp127, 0x1p-53, 1};
  }
  double of_sums(std::int64_t depth) const { return std::max<double>(64, static_cast<double>(depth)) * unit; }
  /// Of FP8 tensor cores, which cut what they add to the last place of the largest addend. Of random signs the
  /// losses are at most X a step; of one sign they add up to half the products of a step times the sum.
  double of_tensor_cores(std::int64_t depth, double magnitude, double reference) const {
    constexpr std::int64_t kPromoted = 128, kAtOnce = 32;
    if (accumulator == Accumulator::float32) return 0;
    const std::int64_t steps =
        core::ceil_div(accumulator == Accumulator::fp8 ? std::min(depth, kPromoted) : depth, kAtOnce);
    return 0x1p-13 * static_cast<double>(steps) * (magnitude + 0.5 * kAtOnce * std::abs(reference));
  }
  double at_the_end(std::int64_t depth) const {
    return static_cast<double>(depth + 1) * least + result.spacing_at(0) / 2;
  }
  /// Of an element with X = `magnitude`; where nothing is computed (depth 0) none.
  double of_element(std::int64_t depth, double magnitude, double reference) const {
    if (depth == 0) return 0;
    return of_sums(depth) * magnitude + of_tensor_cores(depth, magnitude, reference) +
           result.epsilon() * std::abs(reference) + at_the_end(depth);
  }
};

struct Matrix {
  const ArrayView& array;

  const std::byte* row(std::int64_t index) const {
    const Shape& strides = array.strides;
    if (array.rank() == 2) return array.data + index * strides[0];
    return array.data + index / array.shape[1] * strides[0] + index % array.shape[1] * strides[1];
  }
  void load_row(std::int64_t index, std::int64_t first, std::int64_t count, double* out) const {
    const std::int64_t step = array.strides.back();
    load(array.dtype, row(index) + first * step, step, count, out);
  }
  Shape index_of(std::int64_t row, std::int64_t column) const {
    if (array.rank() == 2) return {row, column};
    return {row / array.shape[1], row % array.shape[1], column};
  }
};

}  // namespace ejk::matmul
