// One element from one type to another, without branches, so that loops over it become vectors.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/elements.hpp"
#include "ejk/dtype.hpp"

namespace ejk::arrays {

template <class T>
inline constexpr bool is_half = std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;

/// What an element is computed as: 16-bit floats as float, bool (any byte may stand in a file) as 0
/// or 1.
template <class T>
using Wide =
    std::conditional_t<is_half<T>, float, std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>>;

/// How an element lies in memory: a byte for bool, which may hold anything.
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

inline float widened(float16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(x.bits & 0x7FFFu) << 13;
  // Exponent and fraction in their places; the factor makes up for the smaller bias, subnormal or not.
  const auto finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  return std::bit_cast<float>(sign | (magnitude >= 0x0F800000u ? magnitude | 0x7F800000u : finite));
}
inline float widened(bfloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

template <class T>
Wide<T> widen(Stored<T> x) {
  if constexpr (is_half<T>)
    return widened(x);
  else if constexpr (std::is_same_v<T, bool>)
    return x != 0;
  else
    return x;
}

inline std::uint16_t float16_bits(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7FFFFFFFu;
  const std::uint32_t normal = (magnitude + 0xC8000FFFu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding 0.5 puts the last place of a subnormal where rounding takes place.
  const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
                              std::bit_cast<std::uint32_t>(0.5f);
  std::uint32_t bits = magnitude < 0x38800000u ? small : normal;
  bits = magnitude >= 0x477FF000u ? 0x7C00u : bits;  // 65520 and more
  bits = magnitude > 0x7F800000u ? 0x7E00u : bits;
  return static_cast<std::uint16_t>(sign | bits);
}

inline std::uint16_t bfloat16_bits(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16) | 0x40u : rounded);
}

/// The nearest T, ties to even; more than it holds is an infinity.
template <class T>
T narrowed(float x) {
  T narrow;
  narrow.bits = std::is_same_v<T, float16> ? float16_bits(x) : bfloat16_bits(x);
  return narrow;
}

using core::rounded_to_odd;
using core::rounded_to_odd_double;

/// x as To: floats to the nearest, ties to even, infinite beyond their range; from float to integer the
/// fraction is cut off; anything but 0 is True. False when To cannot hold it: an integer out of range, NaN as
/// integer or bool. From is a Wide type.
template <class To, class From>
bool cast(From x, Stored<To>& to) {
  if constexpr (std::is_same_v<To, bool>) {
    to = x != From{0};
    return x == x;
  } else if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
    to = static_cast<To>(x);
    return std::in_range<To>(x);
  } else if constexpr (std::is_integral_v<To>) {
    constexpr From low = static_cast<From>(std::numeric_limits<To>::min());
    constexpr To half = std::numeric_limits<To>::max() / 2 + 1;
    constexpr From above = From{2} * static_cast<From>(half);
    // low - 1 where From has it: else there is no fraction between the two.
    constexpr bool has_below =
        low == 0 || std::numeric_limits<From>::digits > std::numeric_limits<To>::digits;
    const bool good = (has_below ? x > low - 1 : x >= low) & (x < above);
    to = static_cast<To>(good ? x : From{0});
    return good;
  } else if constexpr (is_half<To>) {
    if constexpr (std::is_same_v<From, float> || sizeof(From) <= 2)
      to = narrowed<To>(static_cast<float>(x));
    else if constexpr (std::is_same_v<From, double>)
      to = narrowed<To>(rounded_to_odd(x));
    else
      to = narrowed<To>(rounded_to_odd(rounded_to_odd_double(x)));
    return true;
  } else {
    to = static_cast<To>(x);
    return true;
  }
}

}  // namespace ejk::arrays
