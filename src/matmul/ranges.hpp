// The rows of each group: contiguous ranges in the order of groups, between which rows may belong to none.
// tests: tests/matmul/test_ranges.cpp
#pragma once

#include <cstdint>
#include <vector>

#include "ejk/array.hpp"

namespace ejk::matmul {

class GroupRanges {
 public:
  GroupRanges() = default;
  /// Groups that follow one another, from group_offsets().
  explicit GroupRanges(const std::vector<std::int64_t>& offsets);
  /// From the group of each row (m,), −1 for none: as many groups as the largest needs, and at least
  /// `least`. Throws Error{input} that names the row: another rank, dtype or length, a group below −1 or
  /// below that of an earlier row, 2^20 groups or more; with `strict` also a row of no group.
  static GroupRanges of_rows(const IntegerArray& row_groups, std::int64_t m, std::int64_t least, bool strict);

  std::int64_t count() const { return static_cast<std::int64_t>(ranges_.size()); }
  /// Of an empty group: where it would be.
  const IndexRange& operator[](std::int64_t g) const { return ranges_[static_cast<std::size_t>(g)]; }
  /// From the first row of the first of these groups to the last row of the last; empty of no groups.
  IndexRange around(IndexRange groups) const;
  /// The group of a row; −1: none.
  std::int64_t group_of(std::int64_t row) const;
  /// The last group that begins at a row or before it; −1: none.
  std::int64_t begun(std::int64_t row) const;
  /// Rows of any group that are before this one.
  std::int64_t rows_before(std::int64_t row) const;

 private:
  std::vector<IndexRange> ranges_;
  std::vector<std::int64_t> before_;  // rows of earlier groups
};

}  // namespace ejk::matmul
