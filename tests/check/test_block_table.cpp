// Block tables: one number of a valid table or of the lengths is changed; a plain loop determines whether
// each token still has a page of its own sequence.
#include <algorithm>
#include <map>
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

TEST_CASE("a page that holds nothing is a warning before the pages of a sequence, an error anywhere else") {
  const auto check = [](const Numbers& table, const Numbers& lengths) {
    const auto batch = std::ssize(lengths), columns = std::ssize(table) / batch;
    return check_block_table(integers(table, {batch, columns}), integers(lengths),
                             {.page_size = 4, .pages = 9, .null_page = 0});
  };
  const auto windows = check({0, 0, 3, 0, 4, 5}, {12, 12});
  CHECK(windows.errors() == 0);
  CHECK(windows.count("window") == 2);
  CHECK(windows.kept()[0].finding.message == "the first 2 of 3 pages of sequence 0");
  const auto none = check({1, 2, 3, 4, 0, 0, 0, 0}, {16, 16});  // no page at all
  CHECK(none.errors() == 1);
  CHECK(none.kept()[0].rule.name == "null");
  CHECK(none.kept()[0].finding.index == Shape{1, 3});
  CHECK(none.kept()[0].finding.message == "all 4 pages of sequence 1 are null");
  CHECK(check({0}, {1}).count("null") == 1);            // the one page that is needed
  CHECK(check({0, 3, 0}, {12}).count("null") == 1);     // the last
  CHECK(check({3, 0, 0, 4}, {16}).count("null") == 2);  // in between
  CHECK(check({3, 0, 0}, {4}).errors() + check({3, 0, 0}, {4}).warnings() == 0);  // what is not needed
  CHECK(check({0, 0}, {0}).errors() + check({0, 0}, {0}).warnings() == 0);
  // A row that is too short has its last page elsewhere.
  CHECK(check({0, 0}, {12}).count("null") == 0);
  // No claim, no exception.
  CHECK(check_block_table(integers({0, 0, 3}, {1, 3}), integers({12}), {.page_size = 4}).count("twice") == 1);
}

TEST_CASE("pages far apart are told from each other as those of a small cache are") {
  Random random(43);
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t batch = between(random, 1, 6), columns = between(random, 1, 40);
    // Pages up to four for each entry are kept in an array: numbers on both sides of that, and far beyond.
    const std::int64_t most = trial % 3 == 0   ? 3 * batch * columns
                              : trial % 3 == 1 ? 6 * batch * columns + 9000
                                               : INT64_MAX;
    Numbers few(static_cast<std::size_t>(between(random, 1, batch * columns))), table;
    for (auto& page : few) page = between(random, 0, most);
    for (std::int64_t n = 0; n < batch * columns; ++n)
      table.push_back(few[static_cast<std::size_t>(between(random, 0, std::ssize(few) - 1))]);
    std::int64_t twice = 0, shared = 0;
    std::map<std::int64_t, std::int64_t> owner;
    for (std::int64_t n = 0; n < batch * columns; ++n) {
      const auto [at, is_new] = owner.try_emplace(table[static_cast<std::size_t>(n)], n / columns);
      twice += !is_new && at->second == n / columns;
      shared += !is_new && at->second != n / columns;
      at->second = n / columns;
    }
    const Numbers lengths(static_cast<std::size_t>(batch), columns);
    const auto found =
        check_block_table(integers(table, {batch, columns}), integers(lengths), {.page_size = 1});
    CHECK(found.count("twice") == twice);
    CHECK(found.count("shared") == shared);
  }
}

TEST_CASE("lengths for other sequences are refused") {
  CHECK_THROWS_AS(check_block_table(integers({0}, {1, 1}), integers({1, 1}), {.page_size = 4}), Error);
  CHECK_THROWS_AS(check_block_table(integers({0}, {1, 1}), integers({1}), {.page_size = 0}), Error);
  CHECK(check_block_table(integers({0}, {1, 1}), integers({INT64_MAX}), {.page_size = 1}).count("beyond") ==
        1);
}
