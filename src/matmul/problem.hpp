// The checked arguments of a grouped product: sets of matrix products, one per group,
//   rows         out[s_g:e_g] = lhs[s_g:e_g] · rhs[g − group_offset]
//   contraction  out[g − group_offset] = lhs[:, s_g:e_g] · rhs[s_g:e_g]
// tests: tests/matmul/test_grouped.cpp
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/grouped_matmul.hpp"
#include "matmul/ranges.hpp"

namespace ejk::matmul {

struct Problem {
  enum class Cut { rows, contraction };  // what groups divide

  Cut cut = Cut::rows;
  ArrayType lhs, rhs, out;
  bool has_existing = false;
  bool existing_has_rows = true;      // its columns are contiguous
  Existing existing = Existing::add;  // what existing_out is for; in transposed products always `add`
  bool transpose_rhs = false;
  std::optional<Tiling> tiling;
  std::optional<std::string> table;          // the name of the tiling table that was searched
  std::optional<std::int64_t> tiling_line;   // in that table
  GroupRanges ranges;                        // of all groups
  bool has_labels = false;                   // the group of each row was given
  std::int64_t m = 0, k = 0, n = 0;          // k: the columns of lhs, in transposed products its rows
  std::int64_t first_group = 0, groups = 0;  // those computed

  std::int64_t groups_in_all() const { return ranges.count(); }
  /// The rows of the g-th of the computed groups.
  const IndexRange& range(std::int64_t g) const { return ranges[first_group + g]; }
  /// From the first to the last row of some of the computed groups.
  IndexRange around(IndexRange some) const {
    return ranges.around({first_group + some.begin, first_group + some.end});
  }
  /// Rows of any group in a range.
  std::int64_t rows_in(IndexRange rows) const {
    return ranges.rows_before(rows.end) - ranges.rows_before(rows.begin);
  }
};

Problem checked(const ArrayType& lhs, const ArrayType& rhs, const IntegerArray& group_sizes,
                const GroupedMatmulSettings& settings, const std::optional<ArrayType>& existing_out);
Problem checked(const ArrayType& lhs, const ArrayType& rhs, const IntegerArray& group_sizes,
                const TransposedGroupedMatmulSettings& settings,
                const std::optional<ArrayType>& existing_out);

struct Operands {
  const ArrayView& lhs;
  const ArrayView& rhs;
  const std::optional<ArrayView>& existing_out;
};

void check_types(const Problem& problem, const Operands& operands, DType out_dtype, const Shape& out_shape);
void check_types(const Problem& problem, const Shape& lhs, const Shape& rhs, const Shape& out,
                 const Operands& operands, DType out_dtype, const Shape& out_shape);

}  // namespace ejk::matmul
