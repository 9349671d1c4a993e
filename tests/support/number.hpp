// Elements of any number type as double.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ejk/array.hpp"

namespace ejk::test {

/// Element i, in C order.
inline double number(const Array& a, std::int64_t i) {
  return dispatch(a.dtype(), [&]<class T>(std::type_identity<T>) {
    const T x = a.elements<T>()[static_cast<std::size_t>(i)];
    if constexpr (std::is_arithmetic_v<T>)
      return static_cast<double>(x);
    else
      return static_cast<double>(static_cast<float>(x));
  });
}

}  // namespace ejk::test
