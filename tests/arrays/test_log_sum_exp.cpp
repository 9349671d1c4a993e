// log_sum_exp: golden cases, plain loops on every axis, sums longer than a chunk, any number of threads.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "ejk/array_math.hpp"
#include "io/support.hpp"
#include "support/golden.hpp"
#include "support/number.hpp"
#include "support/threads.hpp"

using namespace ejk;
using test::number;

namespace {

// By definition, in long double, without a thought for speed.
std::vector<double> by_definition(const Array& x, std::int64_t outer, std::int64_t n, std::int64_t inner) {
  std::vector<double> out;
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < inner; ++i) {
      long double sum = 0;
      for (std::int64_t a = 0; a < n; ++a)
        sum += std::exp(static_cast<long double>(number(x, (o * n + a) * inner + i)));
      out.push_back(static_cast<double>(std::log(sum)));
    }
  return out;
}

Array random_floats(Shape shape) {
  std::mt19937_64 random(11);
  Array x(DType::float32, std::move(shape));
  for (float& v : x.elements<float>()) v = static_cast<float>(random() % 2001) / 100 - 10;
  return x;
}

}  // namespace

TEST_CASE("log_sum_exp: golden cases") {
  for (const golden::Case& c : golden::load("log_sum_exp")) {
    CAPTURE(c.name);
    std::optional<std::int64_t> axis;
    if (!c.params.at("axis").is_null()) axis = c.params.at("axis").get<std::int64_t>();
    const auto keepdims = c.params.at("keepdims").get<bool>() ? Keepdims::yes : Keepdims::no;
    const auto x = make_source(c.in.at("x").view(), "x");
    if (c.is_error) {
      CHECK_THROWS_AS(log_sum_exp(*x, axis, keepdims), Error);
      continue;
    }
    const Array got = log_sum_exp(*x, axis, keepdims);
    const Array &wanted = c.out.at("out"), &exact = c.out.at("out_float64");
    CHECK(name_of(got.dtype()) == name_of(wanted.dtype()));
    REQUIRE(got.shape() == wanted.shape());
    const double tolerance = got.dtype() == DType::float64   ? 1e-12
                             : got.dtype() == DType::float32 ? 1e-6
                                                             : 0x1p-8;
    for (std::int64_t i = 0; i < got.size(); ++i) {
      const double g = number(got, i), e = number(exact, i);
      if (std::isnan(e) || std::isinf(e))
        CHECK((g == e || (std::isnan(g) && std::isnan(e))));
      else
        CHECK(std::abs(g - e) <= tolerance * std::abs(e));
    }
  }
}

TEST_CASE("every axis is a plain loop's, from memory and read in pieces") {
  const Array x = random_floats({6, 7, 5});
  const std::int64_t outer[] = {1, 6, 42, 1}, n[] = {6, 7, 5, 210}, inner[] = {35, 5, 1, 1};
  for (std::size_t k = 0; k < 4; ++k) {
    const auto axis = k < 3 ? std::optional(static_cast<std::int64_t>(k)) : std::nullopt;
    const Array got = log_sum_exp(*make_source(x.view()), axis);
    const auto wanted = by_definition(x, outer[k], n[k], inner[k]);
    REQUIRE(got.size() == static_cast<std::int64_t>(wanted.size()));
    for (std::size_t i = 0; i < wanted.size(); ++i)
      CHECK(number(got, static_cast<std::int64_t>(i)) == doctest::Approx(wanted[i]).epsilon(1e-7));
    CHECK(test::same(got, log_sum_exp(test::Unmapped(Array::copy_of(x.view())), axis)));
  }
}

TEST_CASE("sums that span pieces are those of a plain loop") {
  // More than a piece of 4 MiB: long axes, long rows, many of either.
  for (const Shape& shape :
       {Shape{3'000'000}, Shape{3, 1'500'000}, Shape{2, 900'000, 2}, Shape{5, 2, 1'300'000}}) {
    const Array x = random_floats(shape);
    const auto values = x.elements<float>();
    for (std::int64_t axis = 0; axis < static_cast<std::int64_t>(shape.size()); ++axis) {
      CAPTURE(axis);
      const Array one = log_sum_exp(*make_source(x.view()), axis);
      std::int64_t outer = 1, inner = 1;
      for (std::int64_t d = 0; d < axis; ++d) outer *= shape[static_cast<std::size_t>(d)];
      for (auto d = static_cast<std::size_t>(axis) + 1; d < shape.size(); ++d) inner *= shape[d];
      const std::int64_t n = shape[static_cast<std::size_t>(axis)];
      for (const std::int64_t at : {std::int64_t{0}, outer * inner / 2, outer * inner - 1}) {
        double sum = 0;
        for (std::int64_t a = 0; a < n; ++a)
          sum += std::exp(static_cast<double>(
              values[static_cast<std::size_t>((at / inner * n + a) * inner + at % inner)]));
        CHECK(number(one, at) == doctest::Approx(std::log(sum)).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("infinities, NaN and nothing have the stated results, whichever piece they are in") {
  Array x = random_floats({3'000'000});
  const auto value = [&] { return number(log_sum_exp(*make_source(x.view())), 0); };
  x.elements<float>()[2'900'000] = INFINITY;
  CHECK(value() == INFINITY);
  x.elements<float>()[5] = NAN;
  CHECK(std::isnan(value()));
  x.elements<float>()[2'900'000] = 0;
  CHECK(std::isnan(value()));
  std::fill(x.elements<float>().begin(), x.elements<float>().end(), -INFINITY);
  CHECK(value() == -INFINITY);
  x.elements<float>()[7] = 3;
  CHECK(value() == 3);
  const Array none = log_sum_exp(*make_source(Array(DType::float32, {2, 0})), 1);
  CHECK(none.shape() == Shape{2});
  CHECK(number(none, 1) == -INFINITY);
  CHECK(log_sum_exp(*make_source(Array(DType::float32, {2, 0})), 0).shape() == Shape{0});
}

TEST_CASE("large terms do not overflow, and integers become float32") {
  const std::vector<std::int32_t> values{1000, 1001, 1002};
  const Array sum = log_sum_exp(*make_source(Array::from<std::int32_t>({3}, values)));
  CHECK(sum.dtype() == DType::float32);
  CHECK(number(sum, 0) == doctest::Approx(1002.4076059644444));
}
