// The default element format, and the E8M0 rule of a scale rule and an element format.
// tests: tests/quantize/test_encode.cpp
#pragma once

#include <bit>
#include <cstdint>

#include "ejk/quantize.hpp"
#include "kernels/codes.hpp"
#include "quantize/elements.hpp"

namespace ejk::quantize {

inline ElementFormat element_of(const QuantizeSettings& s) {
  return s.element.value_or(s.scheme == QuantizationScheme::nvfp4 ? ElementFormat::e2m1
                                                                  : ElementFormat::e4m3);
}

inline kernels::E8M0Rule e8m0_rule(ScaleRule rule, const ElementRow& element) {
  kernels::E8M0Rule e;
  const auto largest = std::bit_cast<std::int32_t>(static_cast<float>(element.format->largest));
  e.offset = (largest >> 23) - 127;
  if (rule == ScaleRule::even) e.added = 1u << (22 - element.format->mantissa_bits);
  if (rule == ScaleRule::ceil) e.last_fraction = 0;
  if (rule == ScaleRule::rceil) e.last_fraction = largest & kernels::E8M0Rule::kFraction;
  e.infinity = rule == ScaleRule::rceil ? 254 : 255 - e.offset;
  return e;
}

}  // namespace ejk::quantize
