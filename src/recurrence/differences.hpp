// Differences of results from a reference in float64, apart from the rounding to the type of the results.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/linear_attention.hpp"
#include "ejk/report.hpp"

namespace ejk::recurrence {

/// Half of a unit in the last place of a number of the type, and of its smallest.
inline double half_unit(DType dtype, double value) {
  const int digits = float_format(dtype).mantissa_bits + 1;
  const double least = dtype == DType::float16 ? 0x1p-25 : dtype == DType::float64 ? 0 : 0x1p-140;
  return std::max(least, std::ldexp(std::abs(value), -digits));
}

/// Errors of the elements of an array: those beyond their rounding beside the largest reference.
struct Errors {
  double largest = 0, size = 0;
  Shape index;

  void add(double actual, double expected, DType dtype, const Shape& at) {
    if (actual == expected) return note(0, expected, at);
    if (!std::isfinite(actual) || !std::isfinite(expected)) {
      const bool overflows = std::abs(expected) > (dtype == DType::float16 ? 65519 : 0x1.fffffep127);
      const bool agrees = !std::isfinite(actual) && (!std::isfinite(expected) || overflows);
      return note(agrees ? 0 : std::numeric_limits<double>::infinity(), agrees ? 0 : expected, at);
    }
    note(std::max(0.0, std::abs(actual - expected) - half_unit(dtype, expected)), expected, at);
  }

 private:
  void note(double error, double expected, const Shape& at) {
    if (std::isfinite(expected)) largest = std::max(largest, std::abs(expected));
    if (error > size) size = error, index = at;
  }
};

/// `index`: the heading of the column.
inline Report report_of(bool passed, const std::vector<LinearAttentionGradCheck::Of>& all,
                        const char* index) {
  Report report;
  report.add("passed", "passed", passed);
  Table table{"differences",
              "largest differences from float64",
              {{"array", "array"},
               {"size", "difference", Unit::value},
               {"allowed", "allowed", Unit::value},
               {"index", index}},
              {}};
  for (const auto& [name, d] : all) table.rows.push_back({name, d.size, d.allowed, d.index});
  report.add(std::move(table));
  return report;
}

}  // namespace ejk::recurrence
