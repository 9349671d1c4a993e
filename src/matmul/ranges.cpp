// Ranges of rows from offsets, or from the group of each row, which is read in chunks. O(rows + groups).
// tests: tests/matmul/test_ranges.cpp
#include "matmul/ranges.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/offsets.hpp"
#include "core/pieces.hpp"
#include "core/require.hpp"
#include "ejk/error.hpp"

namespace ejk::matmul {

namespace {

constexpr std::int64_t kMostGroups = std::int64_t{1} << 20;  // bounds the memory of one label
constexpr std::int64_t kLabelsAtOnce = std::int64_t{1} << 15;

Error invalid_labels(const IntegerArray& row_groups, std::string why) {
  return std::move(Error(Error::Kind::input, std::move(why)).at(row_groups->name()));
}

void require_labels(const IntegerArray& row_groups, std::int64_t m) {
  if (!is_integer(row_groups->dtype()))
    throw invalid_labels(row_groups,
                         fmt::format("row_groups must be integers, not {}", name_of(row_groups->dtype())));
  if (row_groups->shape() != Shape{m})
    throw invalid_labels(row_groups,
                         fmt::format("row_groups must be the group of each of {} rows, not of shape {}", m,
                                     to_string(row_groups->shape())));
}

}  // namespace

GroupRanges::GroupRanges(const std::vector<std::int64_t>& offsets) {
  for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
    ranges_.push_back({offsets[g], offsets[g + 1]});
    before_.push_back(offsets[g]);
  }
}

GroupRanges GroupRanges::of_rows(const IntegerArray& row_groups, std::int64_t m, std::int64_t least,
                                 bool strict) {
  require_labels(row_groups, m);
  GroupRanges groups;
  std::int64_t row = 0, rows = 0, end = 0;  // end: of the last group so far
  const auto add_up_to = [&](std::int64_t count, std::int64_t at) {
    groups.ranges_.resize(static_cast<std::size_t>(count), {at, at});
    groups.before_.resize(static_cast<std::size_t>(count), rows);
  };
  std::vector<std::byte> raw;
  std::vector<std::int64_t> labels;
  core::for_each_piece(row_groups->shape(), kLabelsAtOnce, [&](const Shape& start, const Shape& count) {
    labels.resize(static_cast<std::size_t>(count[0]));
    core::read_integer_box(*row_groups, start, count, raw, labels.data());
    for (const std::int64_t g : labels) {
      const std::int64_t last = groups.count() - 1;
      if (g < -1)
        throw invalid_labels(row_groups, fmt::format("row_groups[{}] is {}; -1 is no group", row, g));
      if (g == -1 && strict)
        throw invalid_labels(row_groups, fmt::format("row_groups[{}] is -1, a row of no group", row))
            .hint("unless it has to be strict, rows may belong to none");
      if (g >= kMostGroups)
        throw invalid_labels(row_groups, fmt::format("row_groups[{}] is {}; there are at most {} groups", row,
                                                     g, kMostGroups));
      if (g >= 0 && g < last)
        throw invalid_labels(row_groups,
                             fmt::format("row_groups[{}] is {}, after a row of group {}: the rows of a "
                                         "group must be contiguous, and groups ascend",
                                         row, g, last));
      if (g == last && g >= 0 && end < row)
        throw invalid_labels(row_groups,
                             fmt::format("row_groups[{}] is {}, after rows of no group within the "
                                         "group: the rows of a group must be contiguous",
                                         row, g));
      if (g > last) {
        add_up_to(g, end);
        add_up_to(g + 1, row);
      }
      ++row;
      if (g < 0) continue;
      ++rows;
      groups.ranges_.back().end = end = row;
    }
  });
  if (least > kMostGroups)
    throw core::invalid("{} groups are more than {}, the most of row_groups", least, kMostGroups);
  if (least > groups.count()) add_up_to(least, end);
  return groups;
}

IndexRange GroupRanges::around(IndexRange groups) const {
  if (groups.begin >= groups.end) return {0, 0};
  return {(*this)[groups.begin].begin, (*this)[groups.end - 1].end};
}

std::int64_t GroupRanges::begun(std::int64_t row) const {
  return std::upper_bound(ranges_.begin(), ranges_.end(), row,
                          [](std::int64_t r, const IndexRange& range) { return r < range.begin; }) -
         ranges_.begin() - 1;
}

std::int64_t GroupRanges::group_of(std::int64_t row) const {
  const std::int64_t g = begun(row);
  return g >= 0 && row < (*this)[g].end ? g : -1;
}

std::int64_t GroupRanges::rows_before(std::int64_t row) const {
  const std::int64_t g = begun(row);
  if (g < 0) return 0;
  return before_[static_cast<std::size_t>(g)] + std::min(row, (*this)[g].end) - (*this)[g].begin;
}

}  // namespace ejk::matmul
