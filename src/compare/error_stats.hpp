// Error statistics of results: counts and largest errors, independent of the order of elements and parts.
// tests: tests/compare/test_error_stats.cpp
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "compare/float_type.hpp"

namespace ejk::verify {

/// The item with the largest measure, the first position of equals. NaN is larger than any number.
template <class Position, class Item>
struct Largest {
  bool found = false;
  double measure = 0;
  Position at{};
  Item item{};

  void see(double new_measure, const Position& position, const Item& new_item) {
    if (!found || is_above(new_measure, position, measure, at))
      *this = {true, new_measure, position, new_item};
  }
  void join(const Largest& other) {
    if (other.found) see(other.measure, other.at, other.item);
  }
  /// Whether this one would stay if both were joined; both are found.
  bool is_above(const Largest& other) const { return is_above(measure, at, other.measure, other.at); }

 private:
  static bool is_above(double a, const Position& at_a, double b, const Position& at_b) {
    if (a == b || (std::isnan(a) && std::isnan(b))) return at_a < at_b;
    return std::isnan(a) || a > b;
  }
};

struct Deviation {
  double value = 0, reference = 0;
  double size = 0;  // 0 where NaN or an infinity is right, infinity where it is not
  double allowed = 0;
};

/// The error of a value, and whether it is within the tolerance. NaN is right where the reference is NaN, an
/// infinity where the reference is the same or, within the tolerance, overflows the result's type. With
/// `sums_overflow` both are always right.
struct ElementResult {
  double size = 0;  // 0 where NaN or an infinity is right, infinity where it is not
  bool right = false;
};
inline ElementResult evaluate(const FloatType& type, double value, double reference, double allowed,
                              bool sums_overflow = false) {
  if (std::isfinite(value) && std::isfinite(reference)) {
    const double size = std::abs(value - reference);
    return {size, size <= allowed};
  }
  const auto right = [&] {
    if (std::isnan(reference)) return std::isnan(value);
    if (std::isinf(reference)) return value == reference;
    if (sums_overflow) return true;
    return std::isinf(value) && std::copysign(1.0, value) * reference + allowed >= type.overflow;
  };
  return right() ? ElementResult{0, true} : ElementResult{std::numeric_limits<double>::infinity(), false};
}

/// Statistics of the elements of one result, each with a tolerance of its own.
template <class Position>
class ErrorStats {
 public:
  explicit ErrorStats(DType result, std::optional<DType> rounded_first = std::nullopt)
      : type_(float_type(result, rounded_first)) {}

  void see(const Position& at, double value, double reference, double allowed, bool sums_overflow = false) {
    ++compared;
    nonzero += value != 0 || reference != 0;
    const ElementResult judged = evaluate(type_, value, reference, allowed, sums_overflow);
    const Deviation d{value, reference, judged.size, allowed};
    if (std::isfinite(value) && std::isfinite(reference)) {
      absolute.see(d.size, at, d);
      if (reference != 0) relative.see(d.size / std::abs(reference), at, d);
      ulps.see(d.size / type_.spacing_at(reference), at, d);
    }
    largest.see(d.size, at, d);
    if (judged.right) return;
    ++violating;
    worst.see(allowed > 0 ? d.size / allowed : std::numeric_limits<double>::infinity(), at, d);
  }

  void join(const ErrorStats& other) {
    compared += other.compared;
    nonzero += other.nonzero;
    violating += other.violating;
    for (auto one : {&ErrorStats::largest, &ErrorStats::absolute, &ErrorStats::relative, &ErrorStats::ulps,
                     &ErrorStats::worst})
      (this->*one).join(other.*one);
  }

  std::int64_t compared = 0;
  std::int64_t nonzero = 0;                     // in the result or the reference
  std::int64_t violating = 0;                   // out of tolerance
  Largest<Position, Deviation> largest;         // by size
  Largest<Position, Deviation> absolute;        // the same of pairs of numbers
  Largest<Position, Deviation> relative, ulps;  // of those, to the reference (not 0) and its spacing
  Largest<Position, Deviation> worst;           // of those out of tolerance, by size over tolerance

 private:
  FloatType type_;
};

}  // namespace ejk::verify
