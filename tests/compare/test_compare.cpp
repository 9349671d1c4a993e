// Comparison of arrays: golden cases, a plain loop for every pair of types, NaN and infinities, ulps,
// metrics.
#include "ejk/compare.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "ejk/array_math.hpp"
#include "io/support.hpp"
#include "support/arrays.hpp"
#include "support/golden.hpp"
#include "support/number.hpp"

using namespace ejk;
using test::number;

namespace {

Array floats(const std::vector<float>& values) {
  return Array::from<float>({static_cast<std::int64_t>(values.size())}, values);
}

Comparison compare(const Array& a, const Array& e, const Tolerance& tolerance = {}) {
  return compare_arrays(*make_source(a.view(), "a"), *make_source(e.view(), "e"), tolerance);
}

}  // namespace

TEST_CASE("assert_allclose: golden cases") {
  for (const golden::Case& c : golden::load("assert_allclose")) {
    CAPTURE(c.name);
    const auto a = make_source(c.in.at("actual").view(), "a"),
               e = make_source(c.in.at("expected").view(), "e");
    const Tolerance tolerance{c.params.at("rtol"), c.params.at("atol"),
                              c.params.at("equal_nan").get<bool>() ? NanEqual::yes : NanEqual::no};
    if (c.is_error) {
      CHECK(test::contains(test::error_of(Error::Kind::input, [&] { assert_allclose(*a, *e, tolerance); }),
                           "has the shape"));
      continue;
    }
    const Comparison got = compare_arrays(*a, *e, tolerance);
    REQUIRE(got.close == (number(c.out.at("close"), 0) != 0));
    if (got.close) {
      CHECK_NOTHROW(assert_allclose(*a, *e, tolerance));
      CHECK_FALSE(got.violation);
      continue;
    }
    CHECK(test::contains(test::error_of(Error::Kind::input, [&] { assert_allclose(*a, *e, tolerance); }),
                         "a is not close to e"));
    const double wanted = number(c.out.at("max_difference"), 0);
    REQUIRE(got.violation);
    if (std::isfinite(wanted))
      CHECK(got.violation->amount == doctest::Approx(wanted).epsilon(1e-6));
    else
      CHECK((got.violation->amount == wanted || (std::isnan(wanted) && std::isnan(got.violation->amount))));
    const auto index = c.out.at("max_index").elements<std::int64_t>();
    CHECK(got.violation->index == Shape(index.begin(), index.end()));
  }
}

TEST_CASE("every pair of types is compared as a plain loop does") {
  std::mt19937_64 random(9);
  constexpr std::int64_t n = 5000;
  for (const DType from : test::kAllTypes)
    for (const DType to : test::kAllTypes) {
      CAPTURE(name_of(from));
      CAPTURE(name_of(to));
      // Small numbers that every type holds; one in five is one off, so that no block is without some.
      Array a(DType::int8, {n}), e(DType::int8, {n});
      std::int64_t differing = 0, zeros = 0;
      const bool is_bool = from == DType::boolean || to == DType::boolean;
      for (std::size_t i = 0; i < n; ++i) {
        const auto x = static_cast<std::int8_t>(random() % (is_bool ? 2 : 100));
        const auto y = static_cast<std::int8_t>(random() % 5 != 0 ? x : is_bool ? 1 - x : x + 1);
        a.elements<std::int8_t>()[i] = x, e.elements<std::int8_t>()[i] = y;
        differing += x != y, zeros += x == 0 && y == 0;
      }
      const Comparison got = compare_arrays(*convert_array(make_source(a.view()), from),
                                            *convert_array(make_source(e.view()), to));
      CHECK(got.elements == n);
      // One in hundred is nothing in bfloat16, whose own tolerance is 1.6 of it.
      if (from != DType::bfloat16 && to != DType::bfloat16) CHECK(got.differing == differing);
      CHECK(compare_arrays(*convert_array(make_source(a.view()), from),
                           *convert_array(make_source(e.view()), to), {0.0, 0.0})
                .differing == differing);
      CHECK(got.both_zero == zeros);
      CHECK(got.largest_absolute->amount == 1);
      CHECK(*got.rms == doctest::Approx(std::sqrt(static_cast<double>(differing) / n)));
      CHECK(compare_arrays(*convert_array(make_source(a.view()), from),
                           *convert_array(make_source(a.view()), to))
                .close);
      CHECK(compare_arrays(*convert_array(make_source(a.view()), from),
                           *convert_array(make_source(e.view()), to), {0.0, 1.0})
                .close);
    }
}

TEST_CASE("NaN and infinities are counted on each side, and NaN on one side is the largest difference") {
  const float nan = NAN, inf = INFINITY;
  const Array a = floats({1, nan, inf, -inf, nan, 0, 9}), e = floats({1, nan, inf, inf, 2, inf, 8});
  const Comparison got = compare(a, e);
  CHECK(got.actual_nans == 2);
  CHECK(got.expected_nans == 1);
  CHECK(got.actual_infinities == 2);
  CHECK(got.expected_infinities == 3);
  CHECK(got.differing == 4);
  CHECK(std::isnan(got.violation->amount));
  CHECK(got.violation->index == Shape{4});
  CHECK(got.one_sided_nans == 1);
  CHECK(*got.first_one_sided_nan == Shape{4});
  CHECK(got.one_sided_infinities == 2);
  CHECK(*got.first_one_sided_infinity == Shape{3});
  // The largest differences are those of numbers.
  CHECK(got.finite == 2);
  CHECK(got.largest_absolute->index == Shape{6});
  CHECK(got.largest_relative->index == Shape{6});
  CHECK(got.largest_relative->amount == 0.125);
  CHECK(got.largest_ulps->index == Shape{6});
  CHECK(*got.rms == doctest::Approx(std::sqrt(0.5)));
  CHECK(*got.cosine == doctest::Approx((1 + 72) / std::sqrt(82.0 * 65.0)));
  CHECK(compare(a, a).close);
  CHECK(compare(a, a, {1e-5, 1e-8, NanEqual::no}).differing == 2);
}

TEST_CASE("the largest difference is of all elements, the violation of those that do not agree") {
  // The first differs by more, and agrees.
  const Comparison got = compare(floats({1000001, 1}), floats({1000000, 1.5f}));
  CHECK(got.differing == 1);
  CHECK(got.violation->index == Shape{1});
  CHECK(std::get<double>(got.violation->actual) == 1);
  CHECK(std::get<double>(got.violation->expected) == 1.5);
  CHECK(got.largest_absolute->index == Shape{0});
  CHECK(got.largest_absolute->amount == 1);
  CHECK(got.largest_relative->amount == doctest::Approx(1 / 3.0));
  CHECK(got.largest_ulps->amount == 0x1p22);
}

TEST_CASE("arrays that are close are told apart too") {
  const Comparison near = compare(floats({1, 2, 0}), floats({1, 2.00001f, 0}));
  CHECK(near.close);
  CHECK(near.largest_absolute->index == Shape{1});
  CHECK(near.largest_absolute->amount == doctest::Approx(1e-5).epsilon(0.05));
  CHECK(*near.cosine < 1);
  CHECK(1 - *near.cosine < 1e-10);
  const Comparison same = compare(floats({0, 3}), floats({0, 3}));
  CHECK(same.largest_absolute->amount == 0);
  CHECK(same.largest_absolute->index == Shape{0});
  CHECK(same.largest_relative->index == Shape{1});  // nothing is relative to 0
  CHECK(*same.rms == 0);
  CHECK(*same.cosine == 1);
  CHECK_FALSE(compare(floats({NAN}), floats({NAN})).largest_absolute);
  CHECK_FALSE(compare(floats({NAN}), floats({NAN})).rms);
  CHECK_FALSE(compare(floats({0}), floats({0})).cosine);
}

TEST_CASE("squares beyond and below the range of float32 are counted") {
  const Comparison large = compare(floats({3e30f, 4e30f}), floats({3e30f, 3e30f}));
  CHECK(*large.rms == doctest::Approx(1e30 / std::sqrt(2.0)));
  const Comparison small = compare(floats({3e-30f, 4e-30f}), floats({3e-30f, 3e-30f}));
  CHECK(*small.rms == doctest::Approx(1e-30 / std::sqrt(2.0)));
  CHECK(*small.cosine == doctest::Approx(21 / (5 * std::sqrt(18.0))));
}

TEST_CASE("without a tolerance it is that of the coarser type, and integers are equal or not") {
  const auto differing = [](DType a, DType e, double x, double y) {
    const auto one = [](DType dtype, double value) {
      return convert_array(make_source(Array::from<double>({1}, std::vector<double>{value})), dtype);
    };
    return compare_arrays(*one(a, x), *one(e, y)).differing;
  };
  using D = DType;
  CHECK(differing(D::float32, D::float32, 1, 1.000009) == 0);
  CHECK(differing(D::float32, D::float32, 1, 1.00002) == 1);
  CHECK(differing(D::float16, D::float16, 1, 1 + 0x1p-10) == 0);
  CHECK(differing(D::float16, D::float16, 1, 1 + 0x1p-9) == 1);
  CHECK(differing(D::bfloat16, D::bfloat16, 1, 1 + 0x1p-6) == 0);
  CHECK(differing(D::bfloat16, D::bfloat16, 1, 1 + 0x1p-5) == 1);
  CHECK(differing(D::bfloat16, D::float32, 1, 1.015) == 0);
  CHECK(differing(D::float32, D::float16, 1.0009, 1) == 0);
  CHECK(differing(D::int32, D::int32, 1000000, 1000001) == 1);
  CHECK(differing(D::int64, D::uint8, 200, 200) == 0);
  CHECK(differing(D::int32, D::float32, 1000000, 1000001) == 0);
  const Tolerance only_relative{0.5};
  CHECK(compare(floats({1, 1e-9f}), floats({1.4f, 0}), only_relative).close);  // the other stays
}

TEST_CASE("distances in ulps are counted in the common type") {
  const auto ulps = [](DType dtype, double a, double e) {
    const auto one = [&](double x) {
      return convert_array(make_source(Array::from<double>({1}, std::vector<double>{x})), dtype);
    };
    return compare_arrays(*one(a), *one(e), {0.0, 0.0}).largest_ulps->amount;
  };
  CHECK(ulps(DType::float32, 1, 1 + 0x1p-23) == 1);
  CHECK(ulps(DType::float16, 1, 1 + 0x1p-9) == 2);
  CHECK(ulps(DType::bfloat16, 1, 2) == 128);
  CHECK(ulps(DType::float64, -0x1p-1074, 0x1p-1074) == 2);
  CHECK(ulps(DType::float64, -0x1.8p1023, 0x1.8p1023) == doctest::Approx(0x1p64).epsilon(0.01));
}

TEST_CASE("8-bit floats are compared in their own units") {
  for (const DType dtype : kDTypes) {
    if (!is_8_bit_float(dtype)) continue;
    CAPTURE(name_of(dtype));
    // Neighbours are one apart, from the least number to the largest; others as many as there are steps.
    const int count = dispatch(dtype, []<class T>(std::type_identity<T>) {
      if constexpr (is_8_bit_float(dtype_of<T>()))
        return static_cast<int>(T::kCodes.largest);
      else
        return 0;
    });
    Array x(dtype, {count}), next(dtype, {count}), far(dtype, {count});
    for (int i = 0; i < count; ++i) {
      x.data()[i] = static_cast<std::byte>(i);
      next.data()[i] = static_cast<std::byte>(i + 1);
      far.data()[i] = static_cast<std::byte>(i == 7 ? 40 : i);
    }
    Tolerance one;
    one.max_ulp = 1;
    const Comparison close = compare(x, next, one);
    CHECK(close.close);
    CHECK(close.largest_ulps->amount == 1);
    const Comparison apart = compare(far, x, one);
    CHECK(apart.differing == 1);
    CHECK(apart.largest_ulps->amount == 33);
    CHECK(compare(next, x).close == (dtype != DType::float8_e8m0fnu));
    CHECK_FALSE(compare(far, x).close);
  }
  // 0 and -0; across 0; NaN.
  const auto codes = [](std::vector<std::uint8_t> bits) {
    Array a(DType::float8_e4m3fn, {static_cast<std::int64_t>(bits.size())});
    std::transform(bits.begin(), bits.end(), a.data(), [](std::uint8_t b) { return std::byte{b}; });
    return a;
  };
  CHECK(compare(codes({0x00, 0x02}), codes({0x80, 0x81})).largest_ulps->amount == 3);
  CHECK(compare(codes({0x7F}), codes({0xFF})).close);
}

TEST_CASE("integers differ exactly when no tolerance is given") {
  const std::vector<std::int64_t> a{(std::int64_t{1} << 53) + 1, -5}, e{std::int64_t{1} << 53, -5};
  const Array x = Array::from<std::int64_t>({2}, a), y = Array::from<std::int64_t>({2}, e);
  CHECK(compare(x, y, {1e-5, 0.0}).close);
  const Comparison got = compare(x, y);
  CHECK(got.differing == 1);
  CHECK(got.largest_absolute->amount == 1);
  CHECK(std::get<std::int64_t>(got.largest_absolute->actual) == a[0]);
  CHECK_FALSE(got.largest_ulps);
  const std::vector<std::uint64_t> large{UINT64_MAX, 3};
  const std::vector<std::int64_t> low{INT64_MIN, 3};
  const Comparison far = compare(Array::from<std::uint64_t>({2}, large), Array::from<std::int64_t>({2}, low));
  CHECK(far.differing == 1);
  CHECK(far.largest_absolute->amount == 0x1p64 + 0x1p63);
  // Any byte but 0 is True.
  Array odd(DType::boolean, {3});
  odd.data()[1] = std::byte{7};
  Array even(DType::boolean, {3});
  even.data()[1] = std::byte{1};
  CHECK(compare(odd, even).close);
}

TEST_CASE("integers beyond 63 bits are told exactly") {
  const std::vector<std::uint64_t> a{(std::uint64_t{1} << 63) + 3, 1}, e{(std::uint64_t{1} << 63) + 1, 1};
  const Comparison got = compare(Array::from<std::uint64_t>({2}, a), Array::from<std::uint64_t>({2}, e));
  CHECK(std::get<std::uint64_t>(got.largest_absolute->actual) == a[0]);
  CHECK(std::get<std::uint64_t>(got.largest_absolute->expected) == e[0]);
  CHECK(got.largest_absolute->amount == 2);
  const std::string json = to_json(describe(got), {"compare", {}}), text = to_text(describe(got));
  CHECK(test::contains(json, "9223372036854775811"));
  CHECK(test::contains(text, "9,223,372,036,854,775,809"));
}

TEST_CASE("blocks of integers that are the same count as others do") {
  std::mt19937_64 random(4);
  for (const DType dtype : test::kAllTypes) {
    if (is_float(dtype)) continue;
    CAPTURE(name_of(dtype));
    for (const std::int64_t n : {1, 7, 8, 129, 2049, 5003}) {
      Array x(dtype, {n});
      double squares = 0;
      std::int64_t zeros = 0;
      dispatch(dtype, [&]<class T>(std::type_identity<T>) {
        if constexpr (std::is_integral_v<T>)
          for (T& value : x.elements<T>()) {
            value = static_cast<T>(random() % 3 == 0 ? 0 : std::is_same_v<T, bool> ? 1 : random());
            squares += static_cast<double>(value) * static_cast<double>(value);
            zeros += value == 0;
          }
      });
      const Comparison same = compare(x, x);
      CHECK(same.close);
      CHECK(same.both_zero == zeros);
      CHECK(same.finite == n);
      CHECK(*same.rms == 0);
      CHECK(same.cosine.has_value() == (squares > 0));
      // Beside a block that differs the sums show.
      Array y = Array::copy_of(x.view());
      dispatch(dtype, [&]<class T>(std::type_identity<T>) {
        if constexpr (std::is_integral_v<T>)
          y.elements<T>()[0] = static_cast<T>(y.elements<T>()[0] == 0 ? 1 : 0);
      });
      const Comparison other = compare(x, y);
      double products = 0, squares_of_y = 0;
      dispatch(dtype, [&]<class T>(std::type_identity<T>) {
        if constexpr (std::is_integral_v<T>)
          for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
            const auto p = static_cast<double>(x.elements<T>()[i]),
                       q = static_cast<double>(y.elements<T>()[i]);
            products += p * q, squares_of_y += q * q;
          }
      });
      CHECK(other.differing == 1);
      if (squares > 0 && squares_of_y > 0)
        CHECK(*other.cosine == doctest::Approx(products / std::sqrt(squares * squares_of_y)).epsilon(1e-9));
    }
  }
}

TEST_CASE("the largest quotient is that of a plain loop, however blocks follow one another") {
  std::mt19937_64 random(8);
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16})
    for (int round = 0; round < 12; ++round) {
      CAPTURE(name_of(dtype));
      CAPTURE(round);
      constexpr std::int64_t n = 9000;
      Array a(DType::float32, {n}), e(DType::float32, {n});
      for (std::size_t i = 0; i < n; ++i) {
        const float x = static_cast<float>(random() % 2000) / 500 - 2;
        e.elements<float>()[i] = x;
        // Ever more, ever less, the same blocks, the same quotients.
        const float by = round % 4 == 0   ? static_cast<float>(i) / n
                         : round % 4 == 1 ? 1 - static_cast<float>(i) / n
                         : round % 4 == 2 ? (i / 2048 == 1 ? 1.0F : 0.0F)
                                          : 0.25F;
        a.elements<float>()[i] = random() % 3 == 0 ? x : x + x * 0.01F * by;
      }
      const auto as = [&](const Array& x) { return read_all(*convert_array(make_source(x.view()), dtype)); };
      const Array p = as(a), q = as(e);
      const Array wide_p = read_all(*convert_array(make_source(p.view()), DType::float64)),
                  wide_q = read_all(*convert_array(make_source(q.view()), DType::float64));
      double most = -1;
      std::int64_t at = -1;
      for (std::size_t i = 0; i < n; ++i) {
        const double x = wide_p.elements<double>()[i], y = wide_q.elements<double>()[i];
        if (y == 0) continue;
        const double quotient =
            dtype == DType::float64
                ? std::abs(x - y) / std::abs(y)
                : static_cast<double>(std::abs(static_cast<float>(x) - static_cast<float>(y)) /
                                      std::abs(static_cast<float>(y)));
        if (quotient > most) most = quotient, at = static_cast<std::int64_t>(i);
      }
      const Comparison got = compare(p, q);
      CHECK(got.largest_relative->amount == most);
      CHECK(got.largest_relative->index == Shape{at});
    }
}

TEST_CASE("a comparison of zeros says that it proves little, and dtypes that differ are said") {
  Array a(DType::float32, {100});
  CHECK(proves_little(compare(a, a)));
  for (std::size_t i = 0; i < 11; ++i) a.elements<float>()[i] = 1;
  CHECK_FALSE(proves_little(compare(a, a)));
  CHECK_FALSE(proves_little(compare(Array(DType::boolean, {5}), Array(DType::boolean, {5}))));
  CHECK_FALSE(proves_little(compare(Array(DType::float32, {0}), Array(DType::float32, {0}))));
  const Report report = describe(compare(Array(DType::float16, {100}), Array(DType::bfloat16, {100})));
  REQUIRE(report.warnings.size() == 2);
  CHECK(report.warnings[0] == "the dtypes differ: float16 against bfloat16, compared as float32");
  CHECK(test::contains(report.warnings[1], "proves little"));
  CHECK_THROWS_AS(compare(a, a, {-1.0, 0.0}), Error);
  CHECK_THROWS_AS(compare(a, a, {NAN, 0.0}), Error);
}

TEST_CASE("the tolerance is computed in the arrays' own type") {
  // In float16 the allowance 0.001 · 1000 and the difference 1 are both exactly 1.
  const auto one = [](float x) {
    return convert_array(make_source(Array::from<float>({1}, std::vector<float>{x})), DType::float16);
  };
  CHECK(compare_arrays(*one(1001), *one(1000), {0.001, 0.0}).close);
  CHECK_FALSE(compare_arrays(*one(1001), *one(1000), {0.0009, 0.0}).close);
}

TEST_CASE("a largest difference that several pieces have is the first one's, in memory or read in pieces") {
  Array a(DType::float64, {2'000'000}), e(DType::float64, {2'000'000});
  for (double& x : e.elements<double>()) x = 1;
  for (double& x : a.elements<double>()) x = 1;
  for (const std::size_t i : {1'999'999U, 700'000U, 1'300'000U}) a.elements<double>()[i] = 3;
  for (const std::size_t i : {1'999'998U, 800'000U}) a.elements<double>()[i] = NAN;
  const auto actual = make_source(a.view()), expected = make_source(e.view());
  for (const Comparison& c : {compare_arrays(*actual, *expected),
                              compare_arrays(test::Unmapped(Array::copy_of(a.view())), *expected)}) {
    CHECK(c.largest_absolute->index == Shape{700'000});
    CHECK(c.largest_relative->index == Shape{700'000});
    CHECK(c.largest_ulps->index == Shape{700'000});
    CHECK(c.violation->index == Shape{800'000});
    CHECK(*c.first_one_sided_nan == Shape{800'000});
    CHECK(c.one_sided_nans == 2);
    CHECK(c.differing == 5);
  }
}

TEST_CASE("an element that cannot be read ends the comparison with its error") {
  const Array e(DType::float64, {2'000'000});
  const auto damaged = generated_source(
      {DType::float64, {2'000'000}}, "x",
      [](std::span<const std::int64_t> start, std::span<const std::int64_t> count, void* out) {
        if (start[0] + count[0] == 2'000'000) throw Error(Error::Kind::input, "x: damaged");
        std::memset(out, 0, static_cast<std::size_t>(count[0]) * 8);
      });
  CHECK(test::error_of(Error::Kind::input, [&] { compare_arrays(*damaged, *make_source(e.view())); }) ==
        "x: damaged");
}

TEST_CASE("metrics are those of plain sums, and decide alone or beside a tolerance") {
  std::mt19937_64 engine(17);
  for (int n = 0; n < 40; ++n) {
    const Array a = plain::random(DType::float32, {37}, engine),
                e = plain::random(DType::float32, {37}, engine);
    const auto x = plain::doubles(a.view()), y = plain::doubles(e.view());
    double product = 0, of_x = 0, of_y = 0, apart = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      product += x[i] * y[i], of_x += x[i] * x[i], of_y += y[i] * y[i],
          apart += (x[i] - y[i]) * (x[i] - y[i]);
    const auto compared = [&](const Tolerance& tolerance) {
      return compare_arrays(*make_source(a.view()), *make_source(e.view()), tolerance);
    };
    const Comparison c = compared({});
    CHECK(*c.snr == doctest::Approx(10 * std::log10(of_y / apart)));
    CHECK(*c.rel == doctest::Approx(1 - 2 * product / (of_x + of_y)));
    for (const auto& [metric, value, better] : {std::tuple{Metric::cosine, *c.cosine, -0.01},
                                                {Metric::snr, *c.snr, -0.01},
                                                {Metric::rel, *c.rel, 0.01}}) {
      CHECK(compared({.metric = MetricLimit{metric, value + better}}).close);
      CHECK_FALSE(compared({.metric = MetricLimit{metric, value - better}}).close);
      CHECK_FALSE(compared({.atol = 0.0, .metric = MetricLimit{metric, value + better}}).close);
    }
    const std::int64_t differing = c.differing;
    CHECK(compared({.allowed_count = differing}).close);
    CHECK_FALSE(compared({.allowed_count = differing - 1}).close);
    CHECK(compared({.allowed_share = static_cast<double>(differing) / 37}).close);
    CHECK_FALSE(compared({.allowed_share = (static_cast<double>(differing) - 0.5) / 37}).close);
  }
  // NaN on one side alone is close by no metric; equal zeros are by all.
  const Array zero = plain::filled(DType::float32, {4}, 0),
              no_number = plain::filled(DType::float32, {4}, std::nan(""));
  for (const Metric metric : {Metric::cosine, Metric::snr, Metric::rel}) {
    const Tolerance tolerance{.metric = MetricLimit{metric, metric == Metric::rel ? 1.0 : -1.0}};
    CHECK(compare_arrays(*make_source(zero.view()), *make_source(zero.view()), tolerance).close);
    CHECK_FALSE(compare_arrays(*make_source(no_number.view()), *make_source(zero.view()), tolerance).close);
  }
}

namespace {

// The number after x, of 16-bit floats by their bits; a plain loop counts with it.
template <class T>
T next(T x) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    return std::nextafter(x, std::numeric_limits<T>::infinity());
  } else {
    auto bits = x.bits;
    if ((bits & 0x7FFF) == 0)
      bits = 1;
    else
      bits = static_cast<decltype(bits)>((bits & 0x8000) != 0 ? bits - 1 : bits + 1);
    return std::bit_cast<T>(bits);
  }
}

template <class T>
void check_ulps(std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  constexpr std::int64_t kElements = 4100;
  Array a(dtype_of<T>(), {kElements}), e(dtype_of<T>(), {kElements});
  std::vector<int> steps;
  for (std::size_t i = 0; i < kElements; ++i) {
    // Near 0 the steps cross it.
    const T x = i % 50 == 0 ? T(i % 100 == 0 ? 0.0f : -0.0f)
                            : T(i % 7 == 0 ? 1e-39f * normal(engine) : normal(engine));
    T y = x;
    steps.push_back(static_cast<int>(engine() % 6));
    for (int n = 0; n < steps.back(); ++n) y = next(y);
    a.elements<T>()[i] = x;
    e.elements<T>()[i] = y;
  }
  for (const std::int64_t most : {0, 1, 3, 5}) {
    Tolerance tolerance;
    tolerance.max_ulp = most;
    const Comparison c = compare(a, e, tolerance);
    CHECK(c.differing == std::count_if(steps.begin(), steps.end(), [&](int n) { return n > most; }));
    CHECK(c.close == (most == 5));
  }
}

}  // namespace

TEST_CASE("units in the last place are numbers of the type") {
  check_ulps<float>(1);
  check_ulps<double>(2);
  check_ulps<float16>(3);
  check_ulps<bfloat16>(4);
}

TEST_CASE(
    "units in the last place of two types are those of the coarser, of integers 1; NaN and infinities are none") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const Array fine = floats({1, 1 + 0x1p-7f, 1 + 0x1p-6f, 300, 302, 0x1p-20f, nan, inf, inf, nan});
  Array coarse(DType::bfloat16, {10});
  const float values[] = {1, 1, 1, 300, 300, 0x1p-20f, nan, inf, -inf, 1};
  for (std::size_t i = 0; i < 10; ++i) coarse.elements<bfloat16>()[i] = bfloat16(values[i]);
  const auto differing = [&](std::int64_t most, NanEqual equal) {
    Tolerance tolerance;
    tolerance.max_ulp = most;
    tolerance.nan = equal;
    return compare(fine, coarse, tolerance).differing;
  };
  CHECK(differing(0, NanEqual::yes) == 5);  // of 1, 1, 300, and two of an infinity or NaN on one side
  CHECK(differing(1, NanEqual::yes) == 3);
  CHECK(differing(2, NanEqual::yes) == 2);
  CHECK(differing(2, NanEqual::no) == 3);
  Tolerance two;
  two.max_ulp = 2;
  const Array x = Array::from<std::int32_t>({3}, std::vector<std::int32_t>{5, 7, 9}),
              y = Array::from<std::int32_t>({3}, std::vector<std::int32_t>{5, 9, 12});
  CHECK(compare(x, y, two).differing == 1);
  two.rtol = 0.01;  // both have to hold
  CHECK(compare(x, y, two).differing == 2);
  Tolerance wrong;
  wrong.max_ulp = -1;
  CHECK_THROWS_AS(compare(x, y, wrong), Error);
}

TEST_CASE("what is let pass may not be beyond the hard limit, and what failed is said") {
  const Array e = floats({1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  const auto with = [&](const std::vector<float>& values, auto change) {
    Tolerance tolerance;
    tolerance.allowed_count = 2;
    tolerance.hard_rtol = 0.1;
    change(tolerance);
    return compare(floats(values), e, tolerance);
  };
  const auto plain = [](Tolerance&) {};
  const auto failed = [](const Comparison& c) { return c.failed; };
  using Failed = std::vector<std::string>;
  const Comparison passes = with({1, 1.05f, 1, 0.95f, 1, 1, 1, 1, 1, 1}, plain);
  CHECK(passes.close);
  CHECK(passes.differing == 2);
  CHECK(passes.beyond_hard == 0);
  const Comparison beyond = with({1, 1.05f, 1, 1.2f, 1, 1, 1, 1, 1, 1}, plain);
  CHECK(failed(beyond) == Failed{"hard limit"});
  CHECK(beyond.beyond_hard == 1);
  CHECK(beyond.first_beyond_hard == Shape{3});
  CHECK(failed(with({1.05f, 1.05f, 1.05f, 1, 1, 1, 1, 1, 1, 1}, plain)) == Failed{"elements"});
  CHECK(failed(with({1.05f, 1.05f, 1.2f, 1, 1, 1, 1, 1, 1, 1}, plain)) == Failed{"elements", "hard limit"});
  CHECK(failed(with({std::nanf(""), 1, 1, 1, 1, 1, 1, 1, 1, 1}, plain)) == Failed{"hard limit"});
  CHECK(with({1, 1.05f, 1, 1.2f, 1, 1, 1, 1, 1, 1}, [](Tolerance& t) { t.hard_atol = 0.11; }).close);
  // With a metric alone elements count where they are beyond the hard limit.
  const auto by_metric = [](Tolerance& t) {
    t.allowed_count = 0, t.metric = MetricLimit{Metric::cosine, 0.99};
  };
  CHECK(with({1.05f, 1.05f, 1.05f, 1, 1, 1, 1, 1, 1, 1}, by_metric).close);
  CHECK(failed(with({1.05f, 1.2f, 1, 1, 1, 1, 1, 1, 1, 1}, by_metric)) == Failed{"hard limit"});
  CHECK(failed(with({-1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, by_metric)) == Failed{"hard limit", "metric"});
}

TEST_CASE("a constant that would pass in place of all elements is found, where results are not equal") {
  std::mt19937 random(1);
  const auto between = [&](float low, float high) {
    std::uniform_real_distribution<float> draw(low, high);
    std::vector<float> values(9001);
    for (float& value : values) value = draw(random);
    return values;
  };
  const auto constant_of = [&](const std::vector<float>& e, const Tolerance& tolerance) {
    std::vector<float> a = e;
    a[0] += 1e-4F;
    const Comparison found = compare(floats(a), floats(e), tolerance);
    REQUIRE(found.close);
    if (const auto c = found.constant_that_passes)
      for (const float value : e)  // by the rule itself
        REQUIRE(std::abs(*c - value) <=
                found.atol + found.rtol * std::abs(static_cast<double>(value)) + 1e-12);
    return found.constant_that_passes;
  };
  CHECK(constant_of(between(-0.009F, 0.009F), {0, 1e-2}) == 0);
  CHECK(constant_of(between(0.001F, 0.009F), {0, 1e-2}) == 0);
  CHECK(constant_of(between(0.505F, 0.515F), {0, 1e-2}).value_or(0) == doctest::Approx(0.51).epsilon(0.02));
  CHECK_FALSE(constant_of(between(-0.1F, 0.1F), {0, 1e-2}));
  std::vector<float> late = between(-0.009F, 0.009F);
  late.back() = 0.5F;  // the last element alone leaves none
  CHECK_FALSE(constant_of(late, {0, 1e-2}));
  std::vector<float> one(100, 1.0F);
  CHECK_FALSE(compare(floats(one), floats(one), {0, 1e-2}).constant_that_passes);
  std::vector<float> near_one = one;
  near_one[7] = 1.001F;  // a weight that is constant by itself
  CHECK_FALSE(compare(floats(near_one), floats(one), {0, 1e-2}).constant_that_passes);
}
