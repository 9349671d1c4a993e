// Rounding of doubles to fewer bits, as narrower types and tensor cores do.
// tests: tests/verify/test_fault_search.cpp
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace ejk::verify {

/// The default changes nothing. Exponents are unlimited.
struct Rounding {
  int bits = 0;  // of the fraction; 0: unchanged
  bool truncates = false;
  const char* name = "";

  explicit operator bool() const { return bits > 0; }
  double operator()(double value) const {
    if (bits == 0 || value == 0 || !std::isfinite(value)) return value;
    // To nearest, ties to even. A carry goes to the exponent.
    const auto pattern = std::bit_cast<std::uint64_t>(value);
    const int cut = 52 - bits;
    const std::uint64_t mask = (std::uint64_t{1} << cut) - 1;
    const std::uint64_t half = truncates ? 0 : (mask >> 1) + (pattern >> cut & 1);
    return std::bit_cast<double>((pattern + half) & ~mask);
  }
};

inline constexpr Rounding kRoundings[] = {
    {7, false, "bfloat16"}, {10, false, "float16 or TF32"}, {10, true, "TF32, by cutting bits off"}};

}  // namespace ejk::verify
