// Loads of elements of any dtype and stride as float or double, and stores.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "ejk/dtype.hpp"

namespace ejk::core {

/// `count` elements, `stride` bytes apart, as float or double.
template <class Real>
void load(DType dtype, const std::byte* from, std::int64_t stride, std::int64_t count, Real* out) {
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    const auto as_real = [](const std::byte* p) {
      T value;
      std::memcpy(&value, p, sizeof value);
      return static_cast<Real>(static_cast<Computed<T>>(value));
    };
    if (stride == kSize) {  // a constant step can be vectorised
      for (std::int64_t i = 0; i < count; ++i) out[i] = as_real(from + i * kSize);
    } else {
      for (std::int64_t i = 0; i < count; ++i) out[i] = as_real(from + i * stride);
    }
  });
}

/// The bytes of one element, `n` times.
inline void repeat_element(std::span<const std::byte> element, std::int64_t n, std::byte* to) {
  const auto all = static_cast<std::size_t>(n) * element.size();
  if (all == 0) return;
  std::memcpy(to, element.data(), element.size());
  constexpr std::size_t kCached = 8 << 10;
  for (std::size_t done = element.size(), more = 0; done < all; done += more) {
    more = std::min({done, all - done, kCached});
    std::memcpy(to + done, to, more);
  }
}

/// x as a float that can be rounded again, to 16 bits, with the result of rounding x once: if it is not
/// exact, its last place is odd.
inline float rounded_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || x != x) return nearest;
  const auto bits =
      std::bit_cast<std::uint32_t>(nearest) - (std::abs(static_cast<double>(nearest)) > std::abs(x));
  return std::bit_cast<float>(bits | 1u);
}

/// Numbers as contiguous elements of a float type, rounded once, to nearest even.
inline void store(DType dtype, const double* from, std::int64_t count, std::byte* out) {
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < count; ++i) {
      T element;
      if constexpr (is_small_float<T>)
        element = T(rounded_to_odd(from[i]));
      else
        element = static_cast<T>(from[i]);
      std::memcpy(out + i * static_cast<std::int64_t>(sizeof(T)), &element, sizeof(T));
    }
  });
}

/// An integer as a double that can be rounded again, to 16 bits or by rounded_to_odd(), as if it were rounded
/// once.
template <class I>
double rounded_to_odd_double(I x) {
  const bool negative = x < 0;
  auto magnitude = static_cast<std::uint64_t>(x);
  magnitude = negative ? 0 - magnitude : magnitude;
  if (magnitude >> 40 != 0) magnitude = (magnitude >> 15 << 15) | ((magnitude & 0x7FFFu) != 0 ? 0x8000u : 0u);
  const auto value = static_cast<double>(magnitude);
  return negative ? -value : value;
}

}  // namespace ejk::core
