// Ranges of groups from offsets and from labels of rows, beside loops over rows; invalid labels.
#include "matmul/ranges.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "support/failure.hpp"
#include "support/matmul.hpp"

using ejk::matmul::GroupRanges;
using plain::failure;
using plain::failure_and_hint;
using plain::Sizes;

namespace {

// The group of each row, in order, with rows of none before, between and after groups.
Sizes random_labels(std::int64_t groups, std::mt19937_64& engine) {
  Sizes labels;
  for (std::int64_t g = 0; g < groups; ++g) {
    if (engine() % 3 == 0) labels.insert(labels.end(), engine() % 4, -1);
    labels.insert(labels.end(), engine() % 3 == 0 ? 0 : engine() % 6, g);
  }
  labels.insert(labels.end(), engine() % 3, -1);
  return labels;
}

void check_ranges(const GroupRanges& ranges, const Sizes& labels, std::int64_t groups) {
  CHECK(ranges.count() == groups);
  const auto m = static_cast<std::int64_t>(labels.size());
  std::int64_t before = 0;
  for (std::int64_t row = 0; row < m; ++row) {
    const std::int64_t g = labels[static_cast<std::size_t>(row)];
    CHECK(ranges.group_of(row) == g);
    CHECK(ranges.rows_before(row) == before);
    before += g >= 0;
  }
  CHECK(ranges.rows_before(m) == before);
  std::int64_t end = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    const auto first = std::find(labels.begin(), labels.end(), g);
    const std::int64_t count = std::count(labels.begin(), labels.end(), g);
    CHECK(ranges[g].count() == count);
    CHECK(ranges[g].begin >= end);
    if (count > 0) CHECK(ranges[g].begin == first - labels.begin());
    end = ranges[g].end;
  }
  CHECK(end <= m);
}

}  // namespace

TEST_CASE("ranges of labels are those of a loop over rows") {
  std::mt19937_64 engine(71);
  for (int i = 0; i < 200; ++i) {
    const auto most = static_cast<std::int64_t>(engine() % 7);
    const Sizes labels = random_labels(most, engine);
    const auto m = static_cast<std::int64_t>(labels.size());
    const std::int64_t largest = m == 0 ? -1 : *std::max_element(labels.begin(), labels.end());
    const std::int64_t least = static_cast<std::int64_t>(engine() % 9);
    check_ranges(GroupRanges::of_rows(plain::source(labels), m, least, false), labels,
                 std::max(largest + 1, least));
  }
  const Sizes many(100'000, 3);  // more than are read at once
  check_ranges(GroupRanges::of_rows(plain::source(many), 100'000, 0, true), many, 4);
}

TEST_CASE("ranges of offsets follow one another") {
  check_ranges(GroupRanges(std::vector<std::int64_t>{0, 2, 2, 5}), {0, 0, 2, 2, 2}, 3);
  CHECK(GroupRanges(std::vector<std::int64_t>{0}).count() == 0);
  CHECK(GroupRanges(std::vector<std::int64_t>{0}).rows_before(7) == 0);
}

TEST_CASE("the range around groups is from the first row of the first to the last row of the last") {
  const GroupRanges ranges = GroupRanges::of_rows(plain::source(Sizes{-1, 0, 0, -1, 2, -1, 3}), 7, 0, false);
  const auto around = [&](std::int64_t begin, std::int64_t end) {
    const ejk::IndexRange range = ranges.around({begin, end});
    return std::pair(range.begin, range.end);
  };
  CHECK(around(0, 1) == std::pair<std::int64_t, std::int64_t>(1, 3));
  CHECK(around(0, 3) == std::pair<std::int64_t, std::int64_t>(1, 5));
  CHECK(around(2, 4) == std::pair<std::int64_t, std::int64_t>(4, 7));
  CHECK(around(2, 2) == std::pair<std::int64_t, std::int64_t>(0, 0));
}

TEST_CASE("labels that are no groups of rows name the row") {
  const auto of = [](const Sizes& labels, bool strict = false) {
    return failure_and_hint([&] {
      GroupRanges::of_rows(plain::source(labels), static_cast<std::int64_t>(labels.size()), 0, strict);
    });
  };
  CHECK(
      of({0, 2, 1}) ==
      "sizes.npy: row_groups[2] is 1, after a row of group 2: the rows of a group must be contiguous, and groups ascend");
  CHECK(
      of({0, -1, 0}) ==
      "sizes.npy: row_groups[2] is 0, after rows of no group within the group: the rows of a group must be contiguous");
  CHECK(of({0, -2}) == "sizes.npy: row_groups[1] is -2; -1 is no group");
  CHECK(of({0, -1}) == "no error");
  CHECK(
      of({0, -1}, true) ==
      "sizes.npy: row_groups[1] is -1, a row of no group | unless it has to be strict, rows may belong to none");
  CHECK(of({1 << 20}) == "sizes.npy: row_groups[0] is 1048576; there are at most 1048576 groups");
  CHECK(of({std::numeric_limits<std::int64_t>::max()}) ==
        "sizes.npy: row_groups[0] is 9223372036854775807; there are at most 1048576 groups");
  CHECK(failure([] {
          GroupRanges::of_rows(plain::source(Sizes{0, 1}), 3, 0, false);
        }) == "sizes.npy: row_groups must be the group of each of 3 rows, not of shape (2,)");
  CHECK(failure([] { GroupRanges::of_rows(plain::source(Sizes{}), 0, (1 << 20) + 1, false); }) ==
        "1048577 groups are more than 1048576, the most of row_groups");
}
