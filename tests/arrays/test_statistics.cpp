// Statistics against a plain loop, for every element type; NaN, infinities and empty arrays; any number of
// threads and any kind of source.
#include "ejk/array_math.hpp"
#include "support/threads.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "io/support.hpp"

using namespace ejk;

namespace {

double number(const Extreme& e) {
  if (const auto* whole = std::get_if<std::int64_t>(&e)) return static_cast<double>(*whole);
  if (const auto* large = std::get_if<std::uint64_t>(&e)) return static_cast<double>(*large);
  return std::get<double>(e);
}

// Elements of any type, of small numbers, with some NaN and infinities where there are such.
Array random_array(DType dtype, Shape shape, std::mt19937_64& random) {
  Array array(dtype, std::move(shape));
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    for (T& x : array.elements<T>()) {
      const int value = static_cast<int>(random() % 100);
      if constexpr (std::is_same_v<T, bool>)
        x = value % 2 != 0;
      else if constexpr (std::is_integral_v<T>)
        x = static_cast<T>(std::is_signed_v<T> ? value - 50 : value);
      else
        x = T(value == 7    ? std::nanf("")
              : value == 8  ? INFINITY
              : value == 90 ? -INFINITY
                            : static_cast<float>(value) / 4);
    }
  });
  return array;
}

}  // namespace

TEST_CASE("the mean of finite numbers is finite, also where their sum is not") {
  const auto mean = [](const std::vector<double>& numbers) {
    double means[2] = {};
    for (const int threads : {1, 3}) {
      const Threads use(threads);
      means[threads / 2] = *statistics_of(*make_source(Array::from<double>(
                                              {static_cast<std::int64_t>(numbers.size())}, numbers)))
                                .mean;
    }
    CHECK((means[0] == means[1] || (std::isnan(means[0]) && std::isnan(means[1]))));
    return means[0];
  };
  constexpr double kMost = std::numeric_limits<double>::max(), kNan = NAN, kInfinity = INFINITY;
  CHECK(mean({-1e308, -1e308, -1e308, 1}) == -7.5e307);
  CHECK(mean({kMost, kMost, kMost}) == kMost);
  CHECK(mean({-kMost, -kMost, kNan}) == -kMost);
  CHECK(mean({kMost, -kMost, kMost, kMost}) == kMost / 2);
  CHECK(mean({kMost, kMost, kInfinity}) == kInfinity);
  CHECK(mean({kMost, kMost, -kInfinity}) == -kInfinity);
  CHECK(std::isnan(mean({kInfinity, -kInfinity, kMost})));
  // Boxes that overflow beside one that does not, one that is infinite, and boxes that do so only together.
  std::vector<double> many(2'000'000, kMost);
  std::fill(many.begin(), many.begin() + 1'000'000, -1.0);
  CHECK(mean(many) / kMost == doctest::Approx(0.5));
  many[5] = -kInfinity;
  CHECK(mean(many) == -kInfinity);
  std::fill(many.begin(), many.end(), 0.0);
  many[0] = many[1'999'999] = 1.5e308;
  CHECK(mean(many) == doctest::Approx(1.5e302));
  std::fill(many.begin(), many.end(), 0.5);
  many[0] = many[1] = 1e308, many[1'999'999] = many[1'999'998] = -1e308;
  CHECK(std::abs(mean(many)) <= 1e300);
  // Sums of the narrower types are doubles, and far from their limit.
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32}) {
    const double most = dtype == DType::float16 ? 65504 : 0x1.fep127;
    Array array(dtype, {100});
    dispatch(dtype, [&]<class T>(std::type_identity<T>) {
      for (T& x : array.elements<T>()) x = static_cast<T>(static_cast<float>(most));
    });
    CHECK(*statistics_of(*make_source(array.view())).mean == most);
  }
}

TEST_CASE("statistics are those of a plain loop, for every element type") {
  std::mt19937_64 random(3);
  for (const DType d : kDTypes)
    for (const std::int64_t n : {1, 15, 16, 17, 1000}) {
      CAPTURE(name_of(d));
      const Array array = random_array(d, {n}, random);
      const Statistics s = statistics_of(*make_source(array.view()));
      double low = INFINITY, high = -INFINITY, sum = 0;
      std::int64_t nans = 0, infinities = 0;
      dispatch(d, [&]<class T>(std::type_identity<T>) {
        for (const T element : array.elements<T>()) {
          double x = 0;
          if constexpr (std::is_arithmetic_v<T>)
            x = static_cast<double>(element);
          else
            x = static_cast<double>(static_cast<float>(element));
          if (std::isnan(x)) {
            ++nans;
            continue;
          }
          infinities += std::isinf(x);
          low = std::min(low, x), high = std::max(high, x), sum += x;
        }
      });
      CHECK(s.elements == n);
      CHECK(s.nans == nans);
      CHECK(s.infinities == infinities);
      if (nans == n) {
        CHECK(std::holds_alternative<std::monostate>(s.minimum));
        continue;
      }
      CHECK(number(s.minimum) == low);
      CHECK(number(s.maximum) == high);
      if (infinities == 0) CHECK(*s.mean == doctest::Approx(sum / static_cast<double>(n - nans)));
    }
}

TEST_CASE("extremes of 64 bits are exact") {
  const std::vector<std::int64_t> wide{INT64_MIN, 3, INT64_MAX};
  const Statistics s = statistics_of(*make_source(Array::from<std::int64_t>({3}, wide)));
  CHECK(std::get<std::int64_t>(s.minimum) == INT64_MIN);
  CHECK(std::get<std::int64_t>(s.maximum) == INT64_MAX);
  const std::vector<std::uint64_t> large{UINT64_MAX};
  const Statistics u = statistics_of(*make_source(Array::from<std::uint64_t>({1}, large)));
  CHECK(std::get<std::uint64_t>(u.maximum) == UINT64_MAX);
}

TEST_CASE("nothing, a scalar, and nothing but NaN") {
  const Statistics none = statistics_of(*make_source(Array(DType::float32, {3, 0})));
  CHECK(none.elements == 0);
  CHECK(std::holds_alternative<std::monostate>(none.maximum));
  CHECK_FALSE(none.mean);
  const std::vector<float> nan{std::nanf("")};
  const Statistics one = statistics_of(*make_source(Array::from<float>({}, nan)));
  CHECK(one.elements == 1);
  CHECK(one.nans == 1);
  CHECK_FALSE(one.mean);
}

TEST_CASE("sums of small integers do not overflow, at any length around the runs they are taken in") {
  const auto check = [](auto value) {
    using T = decltype(value);
    for (const std::int64_t n :
         {1, 15, 16, 31, 32, 33, 8191, 8192, 8193, 8224, 20'000, 524'287, 524'288, 600'001}) {
      Array array(dtype_of<T>(), {n});
      std::fill(array.elements<T>().begin(), array.elements<T>().end(), value);
      array.elements<T>().back() = 1;
      const Statistics s = statistics_of(*make_source(array.view()));
      const double sum = static_cast<double>(value) * static_cast<double>(n - 1) + 1;
      CHECK(*s.mean == sum / static_cast<double>(n));
      CHECK(number(s.minimum) == std::min<double>(static_cast<double>(n > 1 ? value : T{1}), 1));
      CHECK(number(s.maximum) == std::max<double>(static_cast<double>(n > 1 ? value : T{1}), 1));
    }
  };
  check(std::int8_t{-128});
  check(std::int8_t{127});
  check(std::uint8_t{255});
  check(std::int16_t{-32768});
  check(std::int16_t{32767});
  check(std::uint16_t{65535});
}

TEST_CASE("histograms count every finite element once, whole numbers of few values each") {
  std::mt19937_64 random(8);
  for (const DType dtype : test::kAllTypes) {
    CAPTURE(name_of(dtype));
    const Array array = random_array(dtype, {3, 1000}, random);
    const auto source = make_source(array.view());
    Statistics s = statistics_of(*source);
    if (s.infinities > 0) {  // no finite range
      CHECK(histogram_of(*source, s).empty());
      continue;
    }
    std::int64_t counted = 0;
    for (const Bin& bin : histogram_of(*source, s)) counted += bin.elements;
    CHECK(counted == 3000 - s.nans);
  }
  const std::vector<std::int32_t> few{5, 7, 7, 8, 5, 5};
  const auto bins = [](const Array& a, std::int64_t most) {
    const auto source = make_source(a.view());
    return histogram_of(*source, statistics_of(*source), most);
  };
  const auto each = bins(Array::from<std::int32_t>({6}, few), 16);
  REQUIRE(each.size() == 4);
  CHECK((each[0].from == 5 && each[0].to == 5 && each[0].elements == 3));
  CHECK(each[1].elements == 0);
  CHECK(each[2].elements == 2);
  const auto two = bins(Array::from<std::int32_t>({6}, few), 2);
  REQUIRE(two.size() == 2);
  CHECK((two[0].to == 6 && two[0].elements == 3 && two[1].from == 7 && two[1].elements == 3));
  const std::vector<float> reals{0, 0.5f, 1, 2, NAN};
  const auto halves = bins(Array::from<float>({5}, reals), 4);
  REQUIRE(halves.size() == 4);
  CHECK((halves[0].elements == 1 && halves[1].elements == 1 && halves[2].elements == 1 &&
         halves[3].elements == 1));
  CHECK(halves[3].to == 2);
  const std::vector<float> same{3, 3};
  CHECK(bins(Array::from<float>({2}, same), 4).size() == 1);
  CHECK(bins(Array(DType::float32, {0}), 4).empty());
  // Nothing lies between them that could be told apart.
  const std::vector<double> smallest{0, 5e-324, NAN};
  const auto one = bins(Array::from<double>({3}, smallest), 4);
  REQUIRE(one.size() == 1);
  CHECK((one[0].from == 0 && one[0].to == 5e-324 && one[0].elements == 2));
}
