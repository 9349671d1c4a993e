// Samples of rows: both ends, no long gap, the requested number, deterministic.
#include "compare/sample.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

using namespace ejk;

TEST_CASE("a sample holds the ends and one row of each equal part between them") {
  for (const std::int64_t rows : {3, 4, 10, 97, 1000, 100000})
    for (const std::int64_t more : {0, 1, 2, 7, 60}) {
      if (more >= rows - 2) continue;
      CAPTURE(rows);
      CAPTURE(more);
      const auto chosen = verify::sample_rows(rows, more, rows);
      REQUIRE(std::ssize(chosen) == more + 2);
      CHECK(chosen.front() == 0);
      CHECK(chosen.back() == rows - 1);
      CHECK(std::adjacent_find(chosen.begin(), chosen.end(), std::greater_equal<>()) == chosen.end());
      const std::int64_t part = more == 0 ? rows : (rows - 2) / more + 1;
      for (std::size_t i = 1; i < chosen.size(); ++i) CHECK(chosen[i] - chosen[i - 1] <= 2 * part);
      CHECK(chosen == verify::sample_rows(rows, more, rows));
    }
  CHECK(verify::sample_rows(1000, 10, 1) != verify::sample_rows(1000, 10, 2));
}

TEST_CASE("all rows are chosen where no more are asked for than there are") {
  for (const std::int64_t rows : {0, 1, 2, 3, 50})
    for (const std::int64_t more : {rows - 2, rows, std::int64_t{1} << 60}) {
      std::vector<std::int64_t> all(static_cast<std::size_t>(rows));
      std::iota(all.begin(), all.end(), 0);
      CHECK(verify::sample_rows(rows, more) == all);
    }
  CHECK(verify::sample_rows(1, 0) == std::vector<std::int64_t>{0});
}
