// Error statistics: worst elements, and those out of tolerance.
#include "compare/error_stats.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

using namespace ejk;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Stats = verify::ErrorStats<std::int64_t>;

bool is_right(DType result, double value, double reference, double allowed, bool sums_overflow = false) {
  Stats stats(result);
  stats.see(0, value, reference, allowed, sums_overflow);
  CHECK(stats.worst.found == (stats.violating == 1));
  CHECK(stats.largest.found);
  return stats.violating == 0;
}

}  // namespace

TEST_CASE("of equals the first stays, in whatever order they are seen, and NaN is the most") {
  using Item = std::pair<std::int64_t, double>;
  std::vector<Item> items{{0, 1}, {1, 7}, {2, -1}, {3, 7}, {4, 0}};
  do {
    verify::Largest<std::int64_t, int> all, first, second;
    for (std::size_t i = 0; i < items.size(); ++i) {
      all.see(items[i].second, items[i].first, 0);
      (i % 2 == 0 ? first : second).see(items[i].second, items[i].first, 0);
    }
    second.join(first);
    CHECK(all.at == 1);
    CHECK(second.at == 1);
    CHECK(second.measure == 7);
  } while (std::next_permutation(items.begin(), items.end()));
  verify::Largest<std::int64_t, int> largest;
  largest.join({});
  CHECK_FALSE(largest.found);
  largest.see(kInfinity, 0, 0);
  largest.see(kNan, 9, 0);
  largest.see(kNan, 8, 0);
  largest.see(kInfinity, 1, 0);
  CHECK(largest.at == 8);
}

TEST_CASE("numbers are right within what is allowed, NaN and infinities by kind") {
  CHECK(is_right(DType::float32, 1.5, 1, 0.5));
  CHECK_FALSE(is_right(DType::float32, 1.5, 1, 0.4375));
  CHECK(is_right(DType::float32, 3, 3, 0));
  for (const double value : {kNan, kInfinity, -kInfinity, 0.0})
    for (const double reference : {kNan, kInfinity, -kInfinity, 0.0})
      CHECK(is_right(DType::float32, value, reference, 1) ==
            (value == reference || (std::isnan(value) && std::isnan(reference))));
  // What is allowed of an infinity is of no account.
  CHECK_FALSE(is_right(DType::float32, 1, kInfinity, kInfinity));
}

TEST_CASE("an infinity is right where the result's type may have no such number") {
  CHECK(is_right(DType::float16, kInfinity, 65520, 0));
  CHECK(is_right(DType::float16, kInfinity, 65519, 1));
  CHECK(is_right(DType::float16, -kInfinity, -65519, 1));
  CHECK_FALSE(is_right(DType::float16, kInfinity, 65519, 0));
  CHECK_FALSE(is_right(DType::float16, kInfinity, -65520, 1));
  CHECK_FALSE(is_right(DType::float32, kInfinity, 65520, 0));
  // Sums that pass the range of their arithmetic may end as anything but a wrong number.
  for (const double value : {kNan, kInfinity, -kInfinity}) CHECK(is_right(DType::float32, value, 1, 0, true));
  CHECK_FALSE(is_right(DType::float32, 2, 1, 0, true));
  CHECK_FALSE(is_right(DType::float32, 2, kNan, 0, true));
}

TEST_CASE("elements stand out by their own measures") {
  Stats stats(DType::float32);
  stats.see(0, 1000001, 1000000, 2);           // the largest number
  stats.see(1, 0.75, 0.5, 0.1);                // furthest beyond its tolerance but for the next
  stats.see(2, 0x1p-126, 0x1p-127, 0x1p-120);  // twice the reference
  stats.see(3, 0.5, 0, 0.25);                  // to 0 nothing is relative
  stats.see(4, kNan, 7, 1);
  stats.see(5, 0, 0, 0);
  CHECK(stats.compared == 6);
  CHECK(stats.nonzero == 5);
  CHECK(stats.violating == 3);
  CHECK(stats.largest.at == 4);
  CHECK(stats.largest.measure == kInfinity);
  CHECK(stats.absolute.at == 0);
  CHECK(stats.absolute.measure == 1);
  CHECK(stats.relative.at == 2);
  CHECK(stats.relative.measure == 1);
  CHECK(stats.ulps.at == 3);
  CHECK(stats.ulps.measure == 0x1p148);
  CHECK(stats.worst.at == 4);
  CHECK(stats.worst.item.size == kInfinity);
  CHECK(stats.worst.item.allowed == 1);
}

TEST_CASE("parts that are joined in any order say what one says that saw everything") {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  Stats all(DType::bfloat16);
  std::array<Stats, 3> parts{Stats(DType::bfloat16), Stats(DType::bfloat16), Stats(DType::bfloat16)};
  for (std::int64_t i = 0; i < 3000; ++i) {
    const double reference = std::round(normal(random) * 8) / 8;
    const double value = random() % 50 == 0 ? kNan : reference + std::round(normal(random) * 8) / 8;
    all.see(i, value, reference, 0.25);
    parts[random() % 3].see(i, value, reference, 0.25);
  }
  parts[2].join(parts[0]);
  parts[2].join(parts[1]);
  const Stats& joined = parts[2];
  CHECK(joined.compared == all.compared);
  CHECK(joined.nonzero == all.nonzero);
  CHECK(joined.violating == all.violating);
  for (auto one : {&Stats::largest, &Stats::absolute, &Stats::relative, &Stats::ulps, &Stats::worst}) {
    CHECK((joined.*one).at == (all.*one).at);
    CHECK((joined.*one).measure == (all.*one).measure);
  }
}
