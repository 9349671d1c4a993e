// E8M0 codes of blocks for their largest magnitudes.
// tests: tests/quantize/test_encode.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "ejk/quantize.hpp"
#include "quantize/elements.hpp"

namespace ejk::quantize {

/// E8M0 codes for the bits of magnitudes. Decided by bits: log2 in float32 is wrong next to powers of two.
/// Without branches, so that loops over blocks are vectorized.
class E8M0Codes {
 public:
  E8M0Codes(ScaleRule rule, const ElementRow& element) {
    const auto largest = std::bit_cast<std::int32_t>(static_cast<float>(element.format->largest));
    offset_ = (largest >> 23) - 127;
    if (rule == ScaleRule::even) added_ = 1u << (22 - element.format->mantissa_bits);
    if (rule == ScaleRule::ceil) last_fraction_ = 0;
    if (rule == ScaleRule::rceil) last_fraction_ = largest & kFraction;
    infinity_ = rule == ScaleRule::rceil ? 254 : 255 - offset_;
  }

  std::uint8_t operator()(std::uint32_t amax) const {
    const auto bits = static_cast<std::int32_t>(amax);
    const auto exponent = static_cast<std::int32_t>((amax + added_) >> 23);
    std::int32_t code = exponent - offset_ + ((bits & kFraction) > last_fraction_ ? 1 : 0);
    code = std::clamp(code, 0, 254);
    code = bits == kInfinity ? infinity_ : code;
    code = bits > kInfinity ? 255 : code;
    return static_cast<std::uint8_t>(code);
  }

 private:
  static constexpr std::int32_t kFraction = 0x7FFFFF, kInfinity = 0x7F800000;
  std::uint32_t added_ = 0;
  std::int32_t offset_, infinity_;
  std::int32_t last_fraction_ = kFraction;  // that is not rounded up
};

}  // namespace ejk::quantize
