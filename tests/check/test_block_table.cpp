// Block tables: one number of a right table, or of the lengths, is changed, and a plain loop says whether
// each token still has a page of its own sequence.
#include <algorithm>
#include <numeric>
#include <set>

#include "check/artefacts.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

bool is_table(const Numbers& table, std::int64_t columns, const Numbers& lengths, std::int64_t page_size,
              std::int64_t pages) {
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] < 0) return false;
    std::set<std::int64_t> mine;
    for (std::int64_t token = 0; token < lengths[s]; token += page_size) {
      const std::int64_t p = token / page_size;
      if (p >= columns) return false;
      const std::int64_t page = table[s * static_cast<std::size_t>(columns) + static_cast<std::size_t>(p)];
      if (page < 0 || page >= pages || !mine.insert(page).second) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("a changed entry or length is an error where a token has no page of its own, and else none") {
  Random random(41);
  Answers right;
  for (int trial = 0; trial < 1500; ++trial) {
    const std::int64_t batch = between(random, 1, 4), columns = between(random, 1, 5);
    const std::int64_t page_size = between(random, 1, 8), pages = batch * columns + between(random, 0, 4);
    Numbers table(static_cast<std::size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), random);
    table.resize(static_cast<std::size_t>(batch * columns));
    Numbers lengths;
    for (std::int64_t s = 0; s < batch; ++s) {
      lengths.push_back(between(random, 0, columns * page_size));
      // What follows the pages that are needed is left as it was, or any number.
      const std::int64_t needed = (lengths.back() + page_size - 1) / page_size;
      if (between(random, 0, 1))
        std::fill(table.begin() + s * columns + needed, table.begin() + (s + 1) * columns,
                  between(random, -1, pages));
    }
    const bool knows_pages = between(random, 0, 1) == 1;
    BlockTableClaims claims{.page_size = page_size};
    if (knows_pages) claims.pages = pages;
    const auto check = [&] {
      return check_block_table(integers(table, {batch, columns}, any_dtype(random)), integers(lengths),
                               claims);
    };
    CHECK(check().errors() == 0);
    change_one(random, between(random, 0, 2) == 0 ? lengths : table);
    CAPTURE(trial);
    const bool is_right =
        is_table(table, columns, lengths, page_size, knows_pages ? pages : std::int64_t{1} << 40);
    right.add(is_right);
    CHECK((check().errors() == 0) == is_right);
  }
  CHECK(std::min(right.yes, right.no) > 150);
}

TEST_CASE("pages of a common prefix are warnings, one for each use beyond the first") {
  const auto found = check_block_table(integers({7, 1, 7, 2, 7, -1}, {3, 2}), integers({8, 8, 4}),
                                       {.page_size = 4, .pages = 10});
  CHECK(found.errors() == 0);
  CHECK(found.count("shared") == 2);
  CHECK(found.kept()[0].finding.index == Shape{1, 0});
  CHECK(found.kept()[0].finding.message == "also of sequence 0");
}

TEST_CASE("a page that holds nothing may stand anywhere, where it is said which") {
  const auto table = integers({0, 0, 3, 0, 0, 4}, {2, 3});
  CHECK(check_block_table(table, integers({12, 12}), {.page_size = 4}).count("twice") == 2);
  const auto found =
      check_block_table(table, integers({12, 12}), {.page_size = 4, .pages = 5, .null_page = 0});
  CHECK(found.errors() + found.warnings() == 0);
}

TEST_CASE("lengths for other sequences are refused") {
  CHECK_THROWS_AS(check_block_table(integers({0}, {1, 1}), integers({1, 1}), {.page_size = 4}), Error);
  CHECK_THROWS_AS(check_block_table(integers({0}, {1, 1}), integers({1}), {.page_size = 0}), Error);
  CHECK(check_block_table(integers({0}, {1, 1}), integers({INT64_MAX}), {.page_size = 1}).count("beyond") ==
        1);
}
