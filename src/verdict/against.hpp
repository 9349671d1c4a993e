// Comparison of a result with its reference, row by row. Cost: the reference rows, and some nanoseconds an
// element; memory: some bytes a row.
// tests: tests/verdict/test_against.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compare/error_stats.hpp"
#include "compare/float_type.hpp"
#include "ejk/against.hpp"

namespace ejk::verify {

struct RowAxis {
  enum class Kind {
    part,      // heads, entries, groups: listed one by one, and a fault may hold in one of them
    position,  // queries, rows: listed as ranges
  };
  std::string name, plural;
  std::int64_t length = 0;
  Kind kind = Kind::part;
  std::string none = {};  // rows without an index on it: "rows of no group"
};

struct ResultRows {
  std::string name;
  DType dtype = DType::float32;
  std::optional<DType> rounded_first{};  // the type that results are rounded to first
  std::int64_t rows = 0, columns = 0;
  std::vector<RowAxis> axes;
  std::vector<std::size_t> array_axes = {};
  /// Names of columns, "column" and "columns", where they are listed. Else empty.
  std::string column, columns_name;
  /// Two axes of the picture, by name, plural or first letter; "column": of the elements. Empty: no picture.
  std::vector<std::string> tiles = {};
  /// The index of a row on each axis; −1: on none.
  std::function<void(std::int64_t row, std::int64_t* at)> place;
  std::function<Shape(std::int64_t row, std::int64_t column)> index;
  std::function<void(std::int64_t row, double* values)> given;
  /// The reference row and the tolerances of its elements: infinite where sums may overflow.
  std::function<void(std::int64_t row, double* values, double* allowed)> expected;
};

/// Error over tolerance; infinite where only one side is a number.
inline double in_bounds(const ElementResult& judged, double allowed) {
  if (judged.right && !(judged.size > 0)) return 0;
  return allowed > 0 && std::isfinite(judged.size) ? judged.size / allowed
                                                   : std::numeric_limits<double>::infinity();
}

struct Row {
  std::vector<double> value, expected, allowed;

  explicit Row(std::int64_t columns)
      : value(static_cast<std::size_t>(columns)), expected(value.size()), allowed(value.size()) {}
  void load(const ResultRows& result, std::int64_t row) {
    result.given(row, value.data());
    result.expected(row, expected.data(), allowed.data());
  }
  ElementResult result_of(const FloatType& type, std::size_t c) const {
    return evaluate(type, value[c], expected[c], allowed[c], std::isinf(allowed[c]));
  }
};

struct WorstElement {
  double bounds = -1;  // below 0: none
  Against::Element element;

  void see(const ResultRows& result, const FloatType& type, const Row& it, std::int64_t row, std::size_t c) {
    const ElementResult judged = it.result_of(type, c);
    const double size = in_bounds(judged, it.allowed[c]);
    if (size <= bounds) return;
    bounds = size;
    element = {result.name, result.index(row, static_cast<std::int64_t>(c)),
               it.value[c], it.expected[c],
               judged.size, it.allowed[c]};
  }
};

struct RowCounts {
  // Elements out of tolerance; of them those that are 0, or NaN or infinite for a number.
  std::vector<std::uint32_t> beyond, zeros, not_numbers;
  std::vector<bool> zero_columns, not_number_columns;  // that have some of these

  std::int64_t bad_rows() const;
};

/// Throws Error{input} about `subject` for another shape, or another than a float type.
void require_given(const ArrayView& given, const Shape& shape, const std::string& name,
                   const std::string& subject);

/// Throws Error{usage} unless some result has these axes.
void require_tiles(std::span<const ResultRows* const> results, const std::vector<std::string>& words);

/// The bounds of `result` become what NoWorseThan allows beside `other`, which loads rows of another implementation's.
/// Throws Error{input} about "other" where that is not finite and should be. Cost: a pass over the reference rows.
void judge_beside(ResultRows& result, const std::function<void(std::int64_t row, double* values)>& other,
                  double factor, Against& against, double nanoseconds);

/// Adds the comparison of one array to `against`. `nanoseconds`: estimated time of all reference rows on one
/// thread. `progress` counts rows.
RowCounts compare_rows(const ResultRows& result, Against& against, double nanoseconds,
                       const std::function<void(std::int64_t done)>& progress = {});

std::string ranges_of(const std::vector<bool>& flags, std::size_t most = 8);

inline std::int64_t bytes_of_rows(std::int64_t rows) { return 16 * rows; }

}  // namespace ejk::verify
