// Rounding to fewer bits than double has, as narrower types and their tensor cores do it.
// tests: tests/verify/test_mistakes.cpp
#pragma once

#include <cmath>

namespace ejk::verify {

/// As it stands it changes nothing. Exponents have no limits.
struct Rounding {
  int bits = 0;  // of the fraction; 0: as it is
  bool truncates = false;
  const char* name = "";

  explicit operator bool() const { return bits > 0; }
  double operator()(double value) const {
    if (bits == 0 || value == 0 || !std::isfinite(value)) return value;
    const int shift = bits - std::ilogb(value);
    const double scaled = std::ldexp(value, shift);
    return std::ldexp(truncates ? std::trunc(scaled) : std::nearbyint(scaled), -shift);
  }
};

inline constexpr Rounding kRoundings[] = {
    {7, false, "bfloat16"}, {10, false, "float16 or TF32"}, {10, true, "TF32, by cutting bits off"}};

}  // namespace ejk::verify
