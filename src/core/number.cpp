// Numbers as elements. Integers are compared as integers: a double represents at most 53 bits of one.
// tests: tests/core/test_number.cpp
#include "core/number.hpp"

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/elements.hpp"
#include "core/require.hpp"

namespace ejk::core {

namespace {

template <class T, class From>
bool fits(From value) {
  bool good = true;
  if constexpr (std::is_same_v<T, bool>)
    good = value == 0 || value == 1;
  else if constexpr (std::is_integral_v<T> && std::is_integral_v<From>)
    good = std::in_range<T>(value);
  else if constexpr (std::is_integral_v<T>)
    good = value == std::trunc(value) && value < std::ldexp(1.0, std::numeric_limits<T>::digits) &&
           value >= static_cast<double>(std::numeric_limits<T>::lowest());
  return good;
}

template <class T, class From>
T as(From value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else if constexpr (std::is_integral_v<From>) {
    return T(rounded_to_odd(rounded_to_odd_double(value)));
  } else {
    return T(rounded_to_odd(value));
  }
}

}  // namespace

Array element_of(DType dtype, const Number& number) {
  Array element(dtype, {});
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    std::visit(
        [&](auto value) {
          if (!fits<T>(value))
            throw core::usage("{} cannot hold the padding value {}", name_of(dtype), value);
          element.elements<T>()[0] = as<T>(value);
        },
        number);
  });
  return element;
}

}  // namespace ejk::core
