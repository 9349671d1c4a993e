// Formats of the float types: precision, smallest exponent and overflow; rounding to fewer bits.
// tests: tests/compare/test_float_type.cpp, tests/verdict/test_fault_search.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
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

/// Rounding of doubles to fewer bits, as narrower types and tensor cores do. The default changes nothing.
/// Exponents are unlimited.
struct Rounding {
  int bits = 0;  // of the fraction; 0: unchanged
  bool truncates = false;
  const char* name = "";
  int least_exponent = -1022;  // below 2 to this, numbers are subnormal

  explicit operator bool() const { return bits > 0; }
  /// The largest relative error.
  double unit() const { return bits > 0 ? std::ldexp(truncates ? 2.0 : 1.0, -bits - 1) : 0; }
  double operator()(double value) const {
    if (bits == 0 || value == 0 || !std::isfinite(value)) return value;
    const auto pattern = std::bit_cast<std::uint64_t>(value);
    if (static_cast<int>(pattern >> 52 & 0x7ff) - 1023 < least_exponent) {
      const double step = std::ldexp(1.0, least_exponent - bits);
      return std::nearbyint(value / step) * step;
    }
    // To nearest, ties to even. A carry goes to the exponent.
    const int cut = 52 - bits;
    const std::uint64_t mask = (std::uint64_t{1} << cut) - 1;
    const std::uint64_t half = truncates ? 0 : (mask >> 1) + (pattern >> cut & 1);
    return std::bit_cast<double>((pattern + half) & ~mask);
  }
};

inline constexpr Rounding kTf32{10, false, "TF32"};

/// To a type of 16 or 32 bits; nothing for float64.
inline Rounding rounding_to(DType dtype) {
  const FloatType type = float_type(dtype);
  if (dtype == DType::float64) return {};
  return {type.fraction_bits, false, "", type.least_exponent};
}

inline constexpr Rounding kRoundings[] = {
    {7, false, "bfloat16"}, {10, false, "float16 or TF32"}, {10, true, "TF32, by cutting bits off"}};
// Of weights up to 1.
inline constexpr Rounding kFloat8Roundings[] = {{3, false, "float8_e4m3fn", -6},
                                                {3, false, "float8_e4m3fn after a factor of 256", -14}};

}  // namespace ejk::verify
