// Value search: faults visible in the values alone are found in the rows that no model explains, with
// fractions of all elements; noise has no explanation.
#include "compare/value_search.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "verdict/fault_search.hpp"

using namespace ejk;

namespace faults_of_values {

namespace {

constexpr std::int64_t kHeads = 6, kQueries = 96, kColumns = 16;

using Values = std::vector<double>;

std::size_t at(std::int64_t head, std::int64_t query, std::int64_t column) {
  return static_cast<std::size_t>((head * kQueries + query) * kColumns + column);
}

// As causal attention makes them: later rows are smaller.
Values right() {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> normal;
  Values values;
  for (std::int64_t h = 0; h < kHeads; ++h)
    for (std::int64_t q = 0; q < kQueries; ++q)
      for (std::int64_t c = 0; c < kColumns; ++c)
        values.push_back(normal(engine) / std::sqrt(static_cast<double>(q + 1)));
  return values;
}

double unit_of(DType dtype) {
  return dtype == DType::bfloat16 ? 0x1p-8 : dtype == DType::float16 ? 0x1p-11 : 0x1p-23;
}

// The bound of an element: of the size of its row.
double allowed(std::int64_t row, DType dtype) {
  return 2 * unit_of(dtype) / std::sqrt(static_cast<double>(row % kQueries + 1));
}

struct Told {
  std::vector<Against::Explained> explanations;
  std::int64_t beyond = 0;
  double left = 0;  // share
};

// Within the bound.
Values rounded(Values values, DType dtype, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> noise(-0.9, 0.9);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] += noise(engine) * allowed(static_cast<std::int64_t>(i) / kColumns, dtype);
  return values;
}

Told told(const Values& expected, const Values& given, DType dtype) {
  verify::ResultRows r;
  r.name = "out";
  r.dtype = DType::float64;
  r.rows = kHeads * kQueries;
  r.columns = kColumns;
  r.axes = {{"head", "heads", kHeads, verify::RowAxis::Kind::part},
            {"query", "queries", kQueries, verify::RowAxis::Kind::position}};
  r.array_axes = {0, 1};
  r.place = [](std::int64_t row, std::int64_t* place) {
    place[0] = row / kQueries, place[1] = row % kQueries;
  };
  r.index = [](std::int64_t row, std::int64_t column) { return Shape{row, column}; };
  r.given = [&given](std::int64_t row, double* values) {
    std::copy_n(given.begin() + row * kColumns, kColumns, values);
  };
  r.expected = [&expected, dtype](std::int64_t row, double* values, double* may) {
    std::copy_n(expected.begin() + row * kColumns, kColumns, values);
    std::fill_n(may, kColumns, allowed(row, dtype));
  };
  Against against;
  const verify::RowCounts counts = verify::compare_rows(r, against, 0);
  verify::FaultSearch search(r, counts, 100);
  search.report(search.run({}), against);
  return {against.explanations, against.beyond,
          against.unexplained.empty() ? 0 : against.unexplained[0].share};
}

constexpr DType kTypes[] = {DType::float32, DType::float16, DType::bfloat16};

}  // namespace

TEST_CASE("faults of values in one head are named with their place and share") {
  const Values expected = right();
  struct Fault {
    const char *kind, *text;
    std::function<void(Values&)> plant;
  };
  const Fault faults[] = {{"offset", "head 2: ",
                           [](Values& v) {
                             for (std::int64_t q = 0; q < kQueries; ++q)
                               for (std::int64_t c = 0; c < kColumns; ++c) v[at(2, q, c)] += 1;
                           }},
                          {"exchanged", "head 4: column 0 to 7 and column 8 to 15 are exchanged",
                           [](Values& v) {
                             for (std::int64_t q = 0; q < kQueries; ++q)
                               for (std::int64_t c = 0; c < 8; ++c)
                                 std::swap(v[at(4, q, c)], v[at(4, q, c + 8)]);
                           }},
                          {"shifted", "head 3: column i holds what belongs to i + 1",
                           [](Values& v) {
                             for (std::int64_t q = 0; q < kQueries; ++q)
                               for (std::int64_t c = 0; c + 1 < kColumns; ++c)
                                 v[at(3, q, c)] = v[at(3, q, c + 1)];
                           }},
                          {"factor", "head 3: 1.5 times what it should be",
                           [](Values& v) {
                             for (std::int64_t q = 0; q < kQueries; ++q)
                               for (std::int64_t c = 0; c < kColumns; ++c) v[at(3, q, c)] *= 1.5;
                           }},
                          {"unwritten", "head 5, query 32 to 63", [](Values& v) {
                             for (std::int64_t q = 32; q < 64; ++q)
                               for (std::int64_t c = 0; c < kColumns; ++c) v[at(5, q, c)] = 7;
                           }}};
  for (const DType dtype : kTypes)
    for (const Fault& fault : faults) {
      CAPTURE(name_of(dtype));
      CAPTURE(fault.text);
      Values given = rounded(expected, dtype, 7);
      fault.plant(given);
      const Told found = told(expected, given, dtype);
      REQUIRE(found.explanations.size() == 1);
      CAPTURE(found.explanations[0].text);
      CHECK(found.explanations[0].kind == fault.kind);
      CHECK((found.explanations[0].text.find(fault.text) != std::string::npos));
      CHECK(found.explanations[0].share_explained > 0.94);
      CHECK(found.explanations[0].share_explained + found.left == doctest::Approx(1));
    }
}

TEST_CASE("two faults of values are told apart, each with its share of the elements") {
  const Values expected = right();
  for (const DType dtype : kTypes) {
    CAPTURE(name_of(dtype));
    Values given = rounded(expected, dtype, 8);
    for (std::int64_t q = 0; q < kQueries; ++q)
      for (std::int64_t c = 0; c < kColumns; ++c) given[at(2, q, c)] += 1;
    for (std::int64_t q = 0; q < kQueries; ++q)
      for (std::int64_t c = 0; c < 8; ++c) std::swap(given[at(4, q, c)], given[at(4, q, c + 8)]);
    const Told found = told(expected, given, dtype);
    REQUIRE(found.explanations.size() == 2);
    std::int64_t of_head_2 = 0;  // beyond the bound
    for (std::int64_t q = 0; q < kQueries; ++q) of_head_2 += kColumns;
    for (const auto& explanation : found.explanations) {
      CAPTURE(explanation.text);
      const double share = static_cast<double>(of_head_2) / static_cast<double>(found.beyond);
      CHECK(std::abs(explanation.share_explained -
                     ((explanation.text.find("head 2") != std::string::npos) ? share : 1 - share)) < 0.03);
    }
  }
}

TEST_CASE("noise and single wrong elements get no explanation") {
  const Values expected = right();
  std::mt19937_64 engine(9);
  std::normal_distribution<double> normal;
  for (int n = 0; n < 360; ++n) {
    CAPTURE(n);
    const DType dtype = kTypes[n % 3];
    const double size = std::pow(2.0, 1 + n % 8);
    Values given = rounded(expected, dtype, 100 + static_cast<std::uint64_t>(n));
    for (std::size_t i = 0; i < given.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / kColumns;
      if (n % 4 == 0 && row % 7 != 0) continue;
      if (n % 4 == 1 && row / kQueries != 3) continue;
      if (n % 4 == 2 && i % 97 != 0) continue;
      given[i] += size * normal(engine) * (n % 2 == 0 ? allowed(row, dtype) : 4 * unit_of(dtype));
    }
    const Told found = told(expected, given, dtype);
    for (const auto& explanation : found.explanations) CAPTURE(explanation.text);
    CHECK(found.explanations.empty());
  }
}

}  // namespace faults_of_values
