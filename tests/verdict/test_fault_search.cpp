// Fault search: models that hold are found, globally or in parts; those that do not are never reported.
#include "verdict/fault_search.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "compare/float_type.hpp"

using namespace ejk;
using verify::FaultModel;

namespace {

constexpr std::int64_t kHeads = 8, kQueries = 40, kColumns = 12;

double value(std::int64_t row, std::int64_t column) {
  return std::sin(static_cast<double>(row * 37 + column * 11)) + 2;
}

// As so many heads of so many queries.
void cut(verify::ResultRows& rows, std::int64_t heads, std::int64_t queries) {
  rows.rows = heads * queries;
  rows.axes[0].length = heads;
  rows.axes[1].length = queries;
  rows.place = [queries](std::int64_t row, std::int64_t* at) {
    at[0] = row / queries, at[1] = row % queries;
  };
}

// Heads of rows that should be value(), and may differ by a millionth.
verify::ResultRows rows_of(const std::function<double(std::int64_t row, std::int64_t column)>& given) {
  verify::ResultRows r;
  r.name = "out";
  r.rows = kHeads * kQueries;
  r.columns = kColumns;
  r.axes = {{"head", "heads", kHeads, verify::RowAxis::Kind::part},
            {"query", "queries", kQueries, verify::RowAxis::Kind::position}};
  r.place = [](std::int64_t row, std::int64_t* at) { at[0] = row / kQueries, at[1] = row % kQueries; };
  r.index = [](std::int64_t row, std::int64_t column) { return Shape{row, column}; };
  r.given = [given](std::int64_t row, double* values) {
    for (std::int64_t c = 0; c < kColumns; ++c) values[c] = given(row, c);
  };
  r.expected = [](std::int64_t row, double* values, double* allowed) {
    for (std::int64_t c = 0; c < kColumns; ++c) values[c] = value(row, c), allowed[c] = 1e-6;
  };
  return r;
}

FaultModel times(double factor) {
  return {"factor", std::to_string(static_cast<int>(factor)) + " times",
          [factor](std::int64_t row, std::span<const std::int64_t> columns, double* values, double* allowed) {
            for (std::size_t c = 0; c < columns.size(); ++c)
              values[c] = factor * value(row, columns[c]), allowed[c] = 1e-6;
            return true;
          }};
}

std::vector<verify::Found> found(const std::function<double(std::int64_t, std::int64_t)>& given,
                                 const std::vector<FaultModel>& mistakes) {
  const verify::ResultRows rows = rows_of(given);
  Against against;
  const verify::RowCounts counts = verify::compare_rows(rows, against, 0);
  verify::FaultSearch search(rows, counts, 100);
  return search.run(mistakes);
}

const std::vector<FaultModel> kTimes{times(2), times(3), times(5)};

}  // namespace

TEST_CASE("what holds everywhere is found, in one head it is said where") {
  const auto all = found([](auto row, auto c) { return 3 * value(row, c); }, kTimes);
  REQUIRE(all.size() == 1);
  CHECK(all[0].explanation.text == "3 times");
  CHECK(all[0].where == "");
  CHECK(all[0].explanation.share_explained == doctest::Approx(1));
  const auto one =
      found([](auto row, auto c) { return (row / kQueries == 5 ? 3 : 1) * value(row, c); }, kTimes);
  REQUIRE(one.size() == 1);
  CHECK(one[0].where == " in head 5");
}

TEST_CASE("a mistake in some rows names them, where others are right") {
  const auto some =
      found([](auto row, auto c) { return (row % kQueries >= 30 ? 2 : 1) * value(row, c); }, kTimes);
  REQUIRE(some.size() == 1);
  CHECK(some[0].explanation.text + some[0].where == "2 times in queries 30-39");
}

TEST_CASE("what was never written is told apart, beside a mistake in the rest") {
  const auto both = found(
      [](auto row, auto c) { return row % kQueries / 8 == 1 && c < 6 ? 0 : 2 * value(row, c); }, kTimes);
  REQUIRE(both.size() == 2);
  CHECK(both[0].explanation.kind == "unwritten");
  CHECK(both[0].where == " in queries 8-15");
  CHECK(both[0].explanation.share_explained == doctest::Approx(0.1));
  CHECK(both[1].explanation.text == "2 times");
  CHECK(both[1].explanation.share_explained == doctest::Approx(0.9));
}

TEST_CASE("of two that explain as much, the one that leaves right rows alone is told") {
  // Rows that are right stay so under the second one.
  FaultModel late = times(2);
  late.text = "2 times from query 30 on";
  late.values = [](std::int64_t row, std::span<const std::int64_t> columns, double* values, double* allowed) {
    for (std::size_t c = 0; c < columns.size(); ++c)
      values[c] = (row % kQueries >= 30 ? 2 : 1) * value(row, columns[c]), allowed[c] = 1e-6;
    return true;
  };
  const auto some = found([](auto row, auto c) { return (row % kQueries >= 30 ? 2 : 1) * value(row, c); },
                          {times(2), late});
  REQUIRE(some.size() == 1);
  CHECK(some[0].explanation.text == "2 times from query 30 on");
  CHECK(some[0].where == "");
}

TEST_CASE("noise, and what holds in a few rows of a head, get no explanation") {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> normal;
  for (int n = 0; n < 40; ++n)
    CHECK(found([&](auto row, auto c) { return value(row, c) + normal(engine); }, kTimes).empty());
  CHECK(found([&](auto row,
                  auto c) { return row % 4 == 0 ? 3 * value(row, c) : value(row, c) + 1 + normal(engine); },
              kTimes)
            .empty());
}

TEST_CASE("of many heads, those with mistakes of their own are found, each named with those it holds in") {
  constexpr std::int64_t kMany = 256, kRows = 5;
  const auto told =
      [](const std::function<double(std::int64_t head, std::int64_t row, std::int64_t c)>& given) {
        auto rows = rows_of([&](auto row, auto c) { return given(row / kRows, row, c); });
        cut(rows, kMany, kRows);
        Against against;
        const verify::RowCounts counts = verify::compare_rows(rows, against, 0);
        verify::FaultSearch search(rows, counts, 100);
        std::string text;
        double shares = 0;
        for (const verify::Found& f : search.run(kTimes)) {
          text += f.explanation.text + f.where + "; ";
          shares += f.explanation.share_explained;
        }
        CHECK(shares <= 1.000001);
        return text;
      };
  std::mt19937_64 engine(6);
  std::normal_distribution<double> normal;
  // Few heads among many others that are wrong for no reason.
  CHECK(told([&](auto head, auto row, auto c) {
          return head == 77 || head == 203 ? 3 * value(row, c)
                 : head == 130             ? 5 * value(row, c)
                                           : normal(engine);
        }) == "3 times in heads 77, 203; 5 times in head 130; ");
  // All but a few heads.
  CHECK(told([](auto head, auto row, auto c) {
          return (head == 9 ? 5 : head == 10 ? 2 : 3) * value(row, c);
        }) == "3 times in heads 0-8, 11-255; 2 times in head 10; 5 times in head 9; ");
  CHECK(told([&](auto head, auto row, auto c) { return head == 9 ? normal(engine) : 3 * value(row, c); }) ==
        "3 times in heads 0-8, 10-255; ");
  // A row that was never written in one of them, and one of NaN.
  CHECK(told([](auto head, auto row, auto c) {
          return head == 200 && row % kRows == 2  ? 0
                 : head == 30 && row % kRows == 4 ? std::nan("")
                                                  : 3 * value(row, c);
        }) ==
        "3 times; elements are 0, as if never written in head 200, query 2; "
        "elements are NaN or infinite in head 30, query 4; ");
}

TEST_CASE("what is accounted for already is in no other scope") {
  // Heads 3 and 4 were never written, and the others are wrong in half of the queries.
  const auto both = found(
      [](auto row, auto c) {
        const bool is_late = row % kQueries >= 20;
        return row / kQueries == 3 || row / kQueries == 4 ? (is_late ? value(row, c) : 0)
                                                          : (is_late ? 2 : 1) * value(row, c);
      },
      kTimes);
  REQUIRE(both.size() == 2);
  CHECK(both[0].where == " in heads 3-4, queries 0-19");
  CHECK(both[1].explanation.text + both[1].where == "2 times in heads 0-2, 5-7, queries 20-39");
}

TEST_CASE("parts whose rows agree on the first sample alone are not named") {
  // In head 2 one query is right by the mistake, the others by none.
  const auto all = found(
      [](auto row, auto c) {
        const std::int64_t head = row / kQueries, query = row % kQueries;
        return head == 2 && query % 4 != 1 ? 7 * value(row, c) + static_cast<double>(query)
               : head % 2 == 0             ? 3 * value(row, c)
                                           : value(row, c) - 1;
      },
      kTimes);
  REQUIRE(all.size() == 1);
  CHECK(all[0].where == " in heads 0, 4, 6");
}

TEST_CASE("a mistake that changes nothing but the bound explains nothing") {
  FaultModel wide = times(1);
  wide.values = [](std::int64_t row, std::span<const std::int64_t> columns, double* values, double* allowed) {
    for (std::size_t c = 0; c < columns.size(); ++c) values[c] = value(row, columns[c]), allowed[c] = 1e-4;
    return true;
  };
  CHECK(found([](auto row, auto c) { return value(row, c) + 1e-5 * std::cos(static_cast<double>(row + c)); },
              {wide})
            .empty());
}

TEST_CASE("partners of parts are found and put into words") {
  const auto rows = rows_of([](auto row, auto c) {
    const std::int64_t head = row / kQueries, from = head == 1 ? 6 : head == 6 ? 1 : head;
    return value(from * kQueries + row % kQueries, c);
  });
  Against against;
  const verify::RowCounts counts = verify::compare_rows(rows, against, 0);
  const verify::FaultSearch search(rows, counts, 100);
  const auto from = search.partners(0, kHeads, [](std::int64_t other) {
    return FaultModel{
        "", "",
        [other](std::int64_t row, std::span<const std::int64_t> columns, double* values, double* allowed) {
          for (std::size_t c = 0; c < columns.size(); ++c)
            values[c] = value(other * kQueries + row % kQueries, columns[c]), allowed[c] = 1e-6;
          return true;
        }};
  });
  CHECK(from == std::vector<std::int64_t>{-1, 6, -1, -1, -1, -1, 1, -1});
  CHECK(verify::is_exchange(from));
  const auto text = [](const std::vector<std::int64_t>& f) {
    return verify::text_of_partners(f, "head", "heads", "the mask");
  };
  CHECK(text(from) == "heads 1 and 6 hold the mask of each other");
  CHECK(text({-1, 0, 0, 0}) == "heads 1-3 hold the mask of head 0");
  CHECK(text({1, 2, 3, -1}) == "heads 0-2 hold the mask of the head just after them");
  CHECK(text({-1, -1, 0, 1}) == "heads 2-3 hold the mask of the head 2 before them");
  CHECK(text({2, -1, -1}) == "head 0 holds the mask of head 2");
  CHECK(text({-1, -1}) == "");
  CHECK_FALSE(verify::is_exchange({-1, 0, 0}));
  using Maps = std::vector<std::vector<std::int64_t>>;
  CHECK(verify::apart({-1, 3, 1, 1, 5, 6, 4}) == Maps{{-1, 3, -1, 1, 5, 6, 4}, {-1, -1, 1, -1, -1, -1, -1}});
  CHECK(verify::apart({1, 2, -1}) == Maps{{1, 2, -1}});
  CHECK(verify::apart({-1, -1}).empty());
}

TEST_CASE("partners of hundreds of parts are found: a few exchanged ones, and all shifted") {
  constexpr std::int64_t kMany = 300, kRows = 4;
  const auto from_of = [](const std::function<std::int64_t(std::int64_t head)>& from) {
    auto rows =
        rows_of([from](auto row, auto c) { return value(from(row / kRows) * kRows + row % kRows, c); });
    cut(rows, kMany, kRows);
    Against against;
    const verify::RowCounts counts = verify::compare_rows(rows, against, 0);
    // A row takes a millisecond.
    const verify::FaultSearch search(rows, counts, 1e6);
    return verify::text_of_partners(
        search.partners(0, kMany,
                        [](std::int64_t other) {
                          return FaultModel{"", "",
                                            [other](std::int64_t row, std::span<const std::int64_t> columns,
                                                    double* values, double* allowed) {
                                              for (std::size_t c = 0; c < columns.size(); ++c)
                                                values[c] = value(other * kRows + row % kRows, columns[c]),
                                                allowed[c] = 1e-6;
                                              return true;
                                            }};
                        }),
        "group", "groups", "the weights");
  };
  CHECK(from_of([](std::int64_t h) {
          return h == 17 ? 290 : h == 290 ? 17 : h;
        }) == "groups 17 and 290 hold the weights of each other");
  CHECK(from_of([](std::int64_t h) { return std::min<std::int64_t>(h + 1, kMany - 1); }) ==
        "groups 0-298 hold the weights of the group just after them");
  CHECK(from_of([](std::int64_t) { return 5; }) == "groups 0-4, 6-299 hold the weights of group 5");
}

TEST_CASE("rounding to fewer bits is that of the narrower types") {
  const verify::Rounding to_bfloat16{7, false, ""}, to_half{10, false, ""}, cut{10, true, ""};
  std::mt19937_64 engine(9);
  std::normal_distribution<float> normal;
  for (int n = 0; n < 1000; ++n) {
    const float x = normal(engine);
    CHECK(to_bfloat16(x) == static_cast<double>(static_cast<float>(bfloat16(x))));
    if (std::abs(x) > 1e-3f) CHECK(to_half(x) == static_cast<double>(static_cast<float>(float16(x))));
    CHECK(std::abs(cut(x)) <= std::abs(static_cast<double>(x)));
  }
  CHECK(verify::Rounding{}(0.1) == 0.1);
  CHECK(to_half(0) == 0);
}

TEST_CASE("rows of 0, NaN or infinities are no evidence for a model that predicts them") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double unwritten : {0.0, -kInfinity, kInfinity, std::nan("")}) {
    CAPTURE(unwritten);
    // Of a query without a key in heads 2 and 3, twice the value in the others.
    FaultModel masked = times(2);
    masked.text = "the mask";
    masked.values = [unwritten](std::int64_t row, std::span<const std::int64_t> columns, double* values,
                                double* allowed) {
      for (std::size_t c = 0; c < columns.size(); ++c) {
        values[c] = row / kQueries / 2 == 1 ? unwritten : 2 * value(row, columns[c]);
        allowed[c] = 1e-6;
      }
      return true;
    };
    const auto text_of = [](const std::vector<verify::Found>& all) {
      return all.empty() ? "" : all[0].explanation.text + all[0].where;
    };
    const auto is_unwritten = [](auto row) { return row / kQueries / 2 == 1; };
    const auto alone = found([&](auto row, auto c) { return is_unwritten(row) ? unwritten : value(row, c); },
                             {masked, times(3)});
    REQUIRE(alone.size() == 1);
    CHECK(text_of(alone) == (unwritten == 0            ? "elements are 0, as if never written in heads 2-3"
                             : unwritten == -kInfinity ? "elements are -inf, as if never written in heads 2-3"
                                                       : "elements are NaN or infinite in heads 2-3"));
    const auto with_numbers =
        found([&](auto row, auto c) { return is_unwritten(row) ? unwritten : 2 * value(row, c); }, {masked});
    REQUIRE(with_numbers.size() == 1);
    CHECK(text_of(with_numbers) == "the mask");
    masked.needs_numbers = false;
    const auto declared =
        found([&](auto row, auto c) { return is_unwritten(row) ? unwritten : value(row, c); }, {masked});
    REQUIRE(!declared.empty());
    CHECK(declared[0].explanation.text == "the mask");
  }
}
