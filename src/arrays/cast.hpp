// Conversion of one element to another type, without branches, so that loops over it are vectorised.
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

/// The type that an element is computed in: Computed, and an integer for bool, whose bytes in files are any.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, Computed<T>>;

/// The type of an element in memory: a byte for bool, of any value.
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

template <class T>
Wide<T> widen(Stored<T> x) {
  if constexpr (std::is_same_v<T, bool>)
    return x != 0;
  else
    return static_cast<Wide<T>>(x);
}

using core::rounded_to_odd;
using core::rounded_to_odd_double;

/// x (a Wide type) as a float that rounds to a small float as x does.
template <class From>
float to_be_rounded(From x) {
  if constexpr (std::is_same_v<From, float> || sizeof(From) <= 2)
    return static_cast<float>(x);
  else if constexpr (std::is_same_v<From, double>)
    return rounded_to_odd(x);
  else
    return rounded_to_odd(rounded_to_odd_double(x));
}

/// x (a Wide type) as To by the rules of convert_array; false if To cannot represent it.
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
  } else if constexpr (is_small_float<To>) {
    to = To(to_be_rounded(x));
    return true;
  } else {
    to = static_cast<To>(x);
    return true;
  }
}

}  // namespace ejk::arrays
