// Encoding of one block: the E8M0 code of its largest magnitude, and the codes of its elements.
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

/// Rounds floats to codes of a format, saturating.
class Encoder {
 public:
  Encoder(const FloatFormat& format, ElementRounding rounding)
      : codes_(format),
        cut_(23 - format.mantissa_bits),
        rebias_((127 - format.bias) << 23),
        lift_((24 + 127 - format.bias - format.mantissa_bits) << 23),
        half_unit_(std::bit_cast<float>((127 - format.bias - format.mantissa_bits) << 23)),
        rounding_(rounding),
        has_nan_(format.special != SpecialCodes::none) {}

  struct Counts {
    std::int32_t saturated = 0, flushed = 0;
  };

  /// At most 2^31 elements.
  void encode(const float* x, std::int64_t n, std::uint8_t* out, Counts& counts) const {
    if (rounding_ == ElementRounding::even) encode_by<ElementRounding::even>(x, n, out, counts);
    if (rounding_ == ElementRounding::away) encode_by<ElementRounding::away>(x, n, out, counts);
    if (rounding_ == ElementRounding::down) encode_by<ElementRounding::down>(x, n, out, counts);
  }

 private:
  // Masks, not branches: the loop is vectorised.
  template <ElementRounding kRounding>
  void encode_by(const float* x, std::int64_t n, std::uint8_t* out, Counts& counts) const {
    const std::int32_t cut = cut_, half = 1 << (cut - 1), least_normal = rebias_ + (1 << 23);
    const auto largest = static_cast<std::int32_t>(codes_.largest);
    const std::int32_t nan = has_nan_ ? static_cast<std::int32_t>(codes_.nan) : largest;
    const std::uint32_t nan_sign = has_nan_ ? ~0u : 0u;
    const int sign_shift = std::countr_zero(codes_.sign);
    std::int32_t saturated = 0, flushed = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(x[i]);
      const auto magnitude = static_cast<std::int32_t>(bits & 0x7FFFFFFFu);
      std::int32_t sum = magnitude - rebias_;
      if constexpr (kRounding == ElementRounding::even) sum += half - 1 + (magnitude >> cut & 1);
      if constexpr (kRounding == ElementRounding::away) sum += half;
      if constexpr (kRounding == ElementRounding::down) sum += half - 1;
      // Subnormal elements: an addition whose last place is theirs rounds to nearest even.
      const float lift = std::bit_cast<float>(lift_), value = std::bit_cast<float>(magnitude);
      const float lifted = value + lift;
      std::int32_t low = std::bit_cast<std::int32_t>(lifted) - lift_;
      const float rest = value - (lifted - lift);
      if constexpr (kRounding == ElementRounding::away) low += rest == half_unit_;
      if constexpr (kRounding == ElementRounding::down) low -= rest == -half_unit_;
      const std::int32_t is_normal = -static_cast<std::int32_t>(magnitude >= least_normal);
      std::int32_t code = (sum >> cut & is_normal) | (low & ~is_normal);
      const std::int32_t is_nan = -static_cast<std::int32_t>(magnitude > 0x7F800000);
      const std::int32_t is_large = -static_cast<std::int32_t>(code > largest);
      code = (largest & is_large) | (code & ~is_large);
      code = (nan & is_nan) | (code & ~is_nan);
      saturated -= is_large & ~is_nan;
      flushed += static_cast<std::int32_t>(code == 0) & static_cast<std::int32_t>(magnitude != 0);
      const std::uint32_t sign = (bits >> 31) & (nan_sign | ~static_cast<std::uint32_t>(is_nan));
      out[i] = static_cast<std::uint8_t>(static_cast<std::uint32_t>(code) | sign << sign_shift);
    }
    counts.saturated += saturated;
    counts.flushed += flushed;
  }

  detail::FloatCodes codes_;
  std::int32_t cut_, rebias_, lift_;
  float half_unit_;
  ElementRounding rounding_;
  bool has_nan_;
};

}  // namespace ejk::quantize
