// The default element format, and the E8M0 rule of a scale rule and an element format.
// tests: tests/quantize/test_encode.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "ejk/quantize.hpp"
#include "quantize/elements.hpp"

namespace ejk::quantize {

inline ElementFormat element_of(const QuantizeSettings& s) {
  return s.element.value_or(s.scheme == QuantizationScheme::nvfp4 ? ElementFormat::e2m1
                                                                  : ElementFormat::e4m3);
}

/// How the E8M0 code of a scale follows from the bits of a largest magnitude. Decided by bits: log2 in float32
/// is wrong next to powers of two.
struct E8M0Rule {
  static constexpr std::int32_t kFraction = 0x7FFFFF, kInfinity = 0x7F800000;
  std::uint32_t added = 0;                 // to the bits, before the exponent is taken
  std::int32_t offset = 0;                 // from the code to the exponent
  std::int32_t last_fraction = kFraction;  // larger ones round up
  std::uint8_t infinity = 254;             // the code of infinity

  std::uint8_t code(std::uint32_t amax) const {
    const auto bits = static_cast<std::int32_t>(amax);
    if (bits > kInfinity) return 255;
    if (bits == kInfinity) return infinity;
    const auto exponent = static_cast<std::int32_t>((amax + added) >> 23);
    return static_cast<std::uint8_t>(
        std::clamp(exponent - offset + ((bits & kFraction) > last_fraction ? 1 : 0), 0, 254));
  }
};

inline E8M0Rule e8m0_rule(ScaleRule rule, const ElementRow& element) {
  E8M0Rule e;
  const auto largest = std::bit_cast<std::int32_t>(static_cast<float>(element.format->largest));
  e.offset = (largest >> 23) - 127;
  if (rule == ScaleRule::even) e.added = 1u << (22 - element.format->mantissa_bits);
  if (rule == ScaleRule::ceil) e.last_fraction = 0;
  if (rule == ScaleRule::rceil) e.last_fraction = largest & E8M0Rule::kFraction;
  if (rule != ScaleRule::rceil) e.infinity = static_cast<std::uint8_t>(255 - e.offset);
  return e;
}

}  // namespace ejk::quantize
