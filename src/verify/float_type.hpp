// Formats of the float types: precision, smallest exponent and overflow.
// tests: tests/verify/test_float_type.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "ejk/dtype.hpp"

namespace ejk::verify {

struct FloatType {
  int fraction_bits;
  int least_exponent;  // of normal numbers
  double overflow;     // the smallest number that rounds to infinity; float64: its largest number

  /// The spacing of numbers at a finite `value`; at 0 the smallest positive number.
  double spacing_at(double value) const {
    const int exponent = value == 0 ? least_exponent : std::max(std::ilogb(value), least_exponent);
    return std::ldexp(1.0, exponent - fraction_bits);
  }
  /// The spacing above 1: twice the unit roundoff.
  double epsilon() const { return std::ldexp(1.0, -fraction_bits); }
};

inline FloatType float_type(DType dtype) {
  const FloatFormat& format = float_format(dtype);
  const double half_spacing = std::ldexp(1.0, std::ilogb(format.largest) - format.mantissa_bits - 1);
  return {format.mantissa_bits, format.least_exponent(),
          std::min(format.largest + half_spacing, std::numeric_limits<double>::max())};
}

/// The same for results that are rounded to another type first, and may overflow there.
inline FloatType float_type(DType dtype, std::optional<DType> rounded_first) {
  FloatType type = float_type(dtype);
  if (rounded_first) type.overflow = std::min(type.overflow, float_type(*rounded_first).overflow);
  return type;
}

}  // namespace ejk::verify
