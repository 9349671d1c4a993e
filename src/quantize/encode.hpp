// The E8M0 code of a block for its largest magnitude.
// tests: tests/quantize/test_encode.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "ejk/quantize.hpp"
#include "quantize/elements.hpp"

namespace ejk::quantize {

/// The E8M0 code for the bits of a magnitude. Decided by bits: log2 in float32 is wrong next to powers of
/// two.
inline std::uint8_t e8m0_code(ScaleRule rule, const ElementRow& element, std::uint32_t amax) {
  if (amax > 0x7F800000u) return 255;
  if (amax == 0x7F800000u && rule == ScaleRule::rceil) return 254;
  if (amax < 0x800000u) return 0;  // below 2^-126, which has a code below 0 for every element
  const auto largest = std::bit_cast<std::uint32_t>(static_cast<float>(element.format->largest));
  constexpr std::uint32_t kFraction = 0x7FFFFFu;
  const std::uint32_t fraction = amax & kFraction;
  std::uint32_t bits = amax;
  if (rule == ScaleRule::even) bits += 1u << (22 - element.format->mantissa_bits);
  int exponent = static_cast<int>(bits >> 23);  // biased, as the code is
  if (rule == ScaleRule::ceil) exponent += fraction != 0;
  if (rule == ScaleRule::rceil) exponent += fraction > (largest & kFraction);
  return static_cast<std::uint8_t>(std::clamp(exponent - static_cast<int>(largest >> 23) + 127, 0, 254));
}

}  // namespace ejk::quantize
