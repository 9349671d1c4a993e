// Percentiles against NumPy's, bins against a plain count.
#include "core/distribution.hpp"

#include <doctest/doctest.h>

#include <limits>

using namespace ejk::core;

TEST_CASE("percentiles are interpolated as numpy.percentile does") {
  const std::vector<std::int64_t> sorted{0, 0, 1, 2, 4, 5, 8};
  CHECK(percentile(sorted, 0) == 0);
  CHECK(percentile(sorted, 50) == 2);
  CHECK(percentile(sorted, 75) == 4.5);
  CHECK(percentile(sorted, 95) == doctest::Approx(7.1));
  CHECK(percentile(sorted, 100) == 8);
  CHECK(percentile({7}, 99) == 7);
}

TEST_CASE("bins double, and run from the smallest number to the largest") {
  const auto bins = doubling_bins({0, 0, 1, 2, 3, 9});
  REQUIRE(bins.size() == 5);
  const char* ranges[] = {"0", "1", "2-3", "4-7", "8-15"};
  const std::int64_t counts[] = {2, 1, 2, 0, 1};
  const double sums[] = {0, 1, 5, 0, 9};
  for (std::size_t i = 0; i < bins.size(); ++i) {
    CHECK(bins[i].range() == ranges[i]);
    CHECK(bins[i].count == counts[i]);
    CHECK(bins[i].sum == sums[i]);
  }
  CHECK(doubling_bins({5, 6}).size() == 1);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(doubling_bins({most}).front().to == most);
}
