// Actual rows against expected ones: counts by axis, ranges, worst elements.
#include "verdict/against.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "support/threads.hpp"

using namespace ejk;

namespace {

// 6 heads of 50 rows of 4 columns, in which everything is 1 and may differ by a half.
verify::ResultRows rows_of_ones(const std::function<double(std::int64_t row, std::int64_t column)>& given) {
  verify::ResultRows r;
  r.name = "out";
  r.rows = 300;
  r.columns = 4;
  r.axes = {{"head", "heads", 6, verify::RowAxis::Kind::part},
            {"query", "queries", 50, verify::RowAxis::Kind::position}};
  r.place = [](std::int64_t row, std::int64_t* at) { at[0] = row < 50 ? -1 : row / 50, at[1] = row % 50; };
  r.index = [](std::int64_t row, std::int64_t column) { return Shape{row, column}; };
  r.given = [given](std::int64_t row, double* values) {
    for (std::int64_t c = 0; c < 4; ++c) values[c] = given(row, c);
  };
  r.expected = [](std::int64_t, double* values, double* allowed) {
    std::fill_n(values, 4, 1.0);
    std::fill_n(allowed, 4, 0.5);
  };
  return r;
}

}  // namespace

TEST_CASE("elements beyond their bound are counted by row, part and position, for any number of threads") {
  const auto given = [](std::int64_t row, std::int64_t column) {
    if (row == 7) return 3.0;                   // on no head: 4 elements by 4 bounds
    if (row == 120 && column == 2) return 0.0;  // 2 bounds
    if (row == 121 && column == 0) return std::numeric_limits<double>::quiet_NaN();  // no number
    return row == 200 ? 1.5 : 1.0;                                                   // as much as is allowed
  };
  for (const int threads : {1, 2, 5}) {
    const Threads set(threads);
    Against a;
    const verify::RowCounts counts = verify::compare_rows(rows_of_ones(given), a, 1e9);
    CHECK(a.elements == 1200);
    CHECK(a.beyond == 6);
    CHECK(a.nonzero == 1200);
    CHECK(a.wide == 0);
    CHECK_FALSE(a.proves_little());
    CHECK(counts.bad_rows() == 3);
    CHECK(counts.beyond[7] == 4);
    CHECK(counts.zeros[120] == 1);
    CHECK(std::isinf(a.largest));
    REQUIRE(a.parts.size() == 2);
    CHECK(a.parts[0].index == 2);
    CHECK(a.parts[0].beyond == 2);
    CHECK(a.parts[0].elements == 200);
    CHECK(a.parts[1].index == -1);
    CHECK(a.parts[1].worst == doctest::Approx(4));
    REQUIRE(a.where.size() == 2);
    CHECK(a.where[0].indices == "2");
    CHECK(a.where[1].indices == "7, 20-21");
    CHECK(a.where[1].count == 3);
    REQUIRE(a.worst.size() == 3);
    CHECK(a.worst[0].index == Shape{121, 0});
    CHECK(a.worst[1].index == Shape{7, 0});
    CHECK(a.worst[2].size == 1);
    CHECK(a.arrays[0].not_numbers == 1);
    CHECK(a.arrays[0].zeros == 1);
  }
}

TEST_CASE("what agrees says by how much of its bound") {
  Against a;
  verify::compare_rows(rows_of_ones([](std::int64_t row, std::int64_t) { return row == 3 ? 1.25 : 1.0; }), a,
                       0);
  CHECK(a.agrees());
  CHECK(a.largest == doctest::Approx(0.5));
  CHECK(a.worst.empty());
  CHECK(a.where.empty());
}

TEST_CASE("ranges of flags, as many as asked for") {
  const std::vector<bool> flags{true, true, false, true, false, true, true, true};
  CHECK(verify::ranges_of(flags) == "0-1, 3, 5-7");
  CHECK(verify::ranges_of(flags, 2) == "0-1, 3, ...");
  CHECK(verify::ranges_of({}) == "");
}

TEST_CASE("the first line is the verdict: arrays, shares and causes") {
  Against a;
  a.arrays = {{"out", DType::float32, 1000, 0}, {"lse", DType::float32, 100, 0}};
  a.largest = 0.34;
  const auto first_line = [&a] {
    const std::string text = to_text(describe(a));
    return text.substr(0, text.find('\n'));
  };
  CHECK(first_line() == "out and lse are right, within 0.34 of the error bound");
  a.not_given = {"max_logits"};
  a.beyond = a.arrays[0].beyond = 973;
  CHECK(first_line() == "out is wrong in 97.3 %; lse is right; not compared: max_logits");
  a.not_given = {};
  a.tried = true;
  CHECK(first_line() == "out is wrong in 97.3 %: no usual mistake accounts for it; lse is right");
  a.explanations.push_back({{"scale", "the scale is left out", 1}, "out"});
  CHECK(first_line() == "out is wrong in 97.3 %: the scale is left out; lse is right");
  a.arrays[1].beyond = 100;
  a.explanations.push_back({{"scale", "the scale is left out", 1}, "lse"});
  CHECK(first_line() == "out and lse are wrong in 97.3 % and 100 %: the scale is left out");
  a.explanations[1].share_explained = 0.5;
  a.explanations.push_back({{"lse_sign", "lse has the wrong sign", 0.25}, "lse"});
  CHECK(first_line() ==
        "out is wrong in 97.3 %: the scale is left out; "
        "lse is wrong in 100 %: the scale is left out (50 % of it), and 1 more cause");
  a.explanations = {{{"unwritten", "head 3 was never written", 0.06}, "out"}};
  CHECK(first_line().starts_with("out is wrong in 97.3 %: no usual mistake accounts for most of it; "));
  a.explanations.clear();
  a.agrees_with = "--layout bhsd";
  CHECK(first_line() == "out and lse are wrong in 97.3 % and 100 %: it agrees with --layout bhsd");
}

TEST_CASE("a bound that is wider than what it is for proves little, and says so") {
  verify::ResultRows rows = rows_of_ones([](std::int64_t, std::int64_t) { return -7.0; });
  rows.expected = [](std::int64_t row, double* values, double* allowed) {
    std::fill_n(values, 4, 1.0);
    std::fill_n(allowed, 4, row < 200 ? 100.0 : 0.5);
  };
  Against a;
  verify::compare_rows(rows, a, 1e9);
  CHECK(a.beyond == 400);
  CHECK(a.wide == 800);
  CHECK(a.proves_little());
  CHECK(describe(a).warnings.size() == 1);
}

TEST_CASE("the picture has the tiles of two axes, of rows or of columns") {
  const auto rows_with = [](std::vector<std::string> tiles) {
    verify::ResultRows rows = rows_of_ones([](std::int64_t row, std::int64_t column) {
      return row == 120 && column == 2 ? 0.0 : row >= 250 ? 3.0 : 1.0;
    });
    rows.tiles = std::move(tiles);
    return rows;
  };
  const auto picture = [&](std::vector<std::string> tiles) {
    Against a;
    verify::compare_rows(rows_with(std::move(tiles)), a, 1e9);
    return a.tiles;
  };
  const auto state = [](const Against::Tiles& t, std::int64_t row, std::int64_t column) {
    return t.states->stored()[static_cast<std::size_t>(row * t.states->columns() + column)];
  };
  for (const auto& words : {std::vector<std::string>{"query", "head"}, {"q", "heads"}}) {
    const auto tiles = picture(words);
    REQUIRE(tiles);
    CHECK(tiles->row_axis.name == "queries");
    CHECK(tiles->row_axis.unit == "tokens");
    CHECK(tiles->row_axis.length == 50);
    for (std::int64_t q = 0; q < 50; ++q)
      for (std::int64_t h = 0; h < 6; ++h)
        CHECK(state(*tiles, q, h) == (h == 5 ? 2 : h == 2 && q == 20 ? 1 : 0));
  }
  const auto columns = picture({"head", "column"});
  REQUIRE(columns);
  for (std::int64_t h = 0; h < 6; ++h)
    for (std::int64_t c = 0; c < 4; ++c)
      CHECK(state(*columns, h, c) == (h == 5 ? 2 : h == 2 && c == 2 ? 1 : 0));
  CHECK_FALSE(picture({}));
  CHECK_FALSE(picture({"head", "key"}));
  const verify::ResultRows rows = rows_with({});
  const verify::ResultRows* const all_rows[] = {&rows};
  CHECK_NOTHROW(verify::require_tiles(all_rows, {"heads", "c"}));
  for (const auto& words : std::vector<std::vector<std::string>>{{"head", "key"}, {"head", "head"}, {"head"}})
    CHECK_THROWS_AS(verify::require_tiles(all_rows, words), Error);
  // Of an array that is wrong everywhere alike there is none.
  Against all;
  verify::ResultRows wrong = rows_of_ones([](std::int64_t, std::int64_t) { return 5.0; });
  wrong.tiles = {"query", "column"};
  verify::compare_rows(wrong, all, 1e9);
  CHECK_FALSE(all.tiles);
}
