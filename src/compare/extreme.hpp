// Elements of any type in reports, and the difference of two of them.
// tests: tests/compare/test_compare.cpp
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include "ejk/array_math.hpp"
#include "ejk/report.hpp"

namespace ejk::verify {

/// |a - b| of integers, exactly until it is a double.
template <class I>
double difference(I a, I b) {
  return static_cast<double>(static_cast<std::uint64_t>(a > b ? a : b) -
                             static_cast<std::uint64_t>(a > b ? b : a));
}
inline double difference(std::int64_t a, std::uint64_t b) {
  return a < 0 ? static_cast<double>(b) - static_cast<double>(a)
               : difference(static_cast<std::uint64_t>(a), b);
}
inline double difference(std::uint64_t a, std::int64_t b) { return difference(b, a); }

template <class V>
Extreme extreme(V value) {
  if constexpr (std::is_integral_v<V>) {
    if (std::in_range<std::int64_t>(value)) return static_cast<std::int64_t>(value);
    return static_cast<std::uint64_t>(value);
  } else {
    return static_cast<double>(value);
  }
}

inline ReportValue value_of(const Extreme& extreme) {
  return std::visit([](auto value) { return ReportValue(value); }, extreme);
}

}  // namespace ejk::verify
