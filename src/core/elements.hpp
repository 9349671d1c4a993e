// Elements of any dtype and stride as one type to compute with.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
      if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>)
        return static_cast<Real>(static_cast<float>(value));
      else
        return static_cast<Real>(value);
    };
    if (stride == kSize) {  // a constant step is what compilers make fast
      for (std::int64_t i = 0; i < count; ++i) out[i] = as_real(from + i * kSize);
    } else {
      for (std::int64_t i = 0; i < count; ++i) out[i] = as_real(from + i * stride);
    }
  });
}

/// A float that stands for x when it is rounded once more, to 16 bits: with an odd last place when it is not
/// x.
inline float rounded_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || x != x) return nearest;
  const auto bits =
      std::bit_cast<std::uint32_t>(nearest) - (std::abs(static_cast<double>(nearest)) > std::abs(x));
  return std::bit_cast<float>(bits | 1u);
}

}  // namespace ejk::core
