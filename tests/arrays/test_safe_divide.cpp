// safe_divide: golden cases, broadcasting against a plain loop, mixed types.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "ejk/array_math.hpp"
#include "io/support.hpp"
#include "support/golden.hpp"

using namespace ejk;

namespace {

Array floats(Shape shape, std::initializer_list<float> values) {
  return Array::from<float>(std::move(shape), std::vector<float>(values));
}

}  // namespace

TEST_CASE("safe_divide: golden cases") {
  for (const golden::Case& c : golden::load("safe_divide")) {
    CAPTURE(c.name);
    const auto run = [&] {
      return read_all(*safe_divide(make_source(c.in.at("numerator").view(), "a"),
                                   make_source(c.in.at("denominator").view(), "b"),
                                   c.params.at("min_denominator")));
    };
    if (c.is_error) {
      CHECK(test::contains(test::error_of(Error::Kind::input, run), "a of shape (3,) and b of shape (2,)"));
      continue;
    }
    const Array got = run(), &wanted = c.out.at("out");
    CHECK(name_of(got.dtype()) == name_of(wanted.dtype()));
    REQUIRE(got.shape() == wanted.shape());
    for (std::size_t i = 0; i < static_cast<std::size_t>(got.size()); ++i) {
      if (got.dtype() == DType::float32) {
        const double g = got.elements<float>()[i], w = wanted.elements<float>()[i];
        CHECK((g == w || (std::isnan(g) && std::isnan(w)) || std::abs(g - w) <= 0x1p-22 * std::abs(w)));
      } else {
        CHECK(std::abs(got.elements<std::int16_t>()[i] - wanted.elements<std::int16_t>()[i]) <= 1);
      }
    }
  }
}

TEST_CASE("shapes meet as in NumPy, in boxes too") {
  const Array a = test::counting({4, 1, 5}), b = test::counting({3, 1});
  const auto quotient = safe_divide(make_source(a.view()), make_source(b.view()), 0.5);
  CHECK(quotient->shape() == Shape{4, 3, 5});
  CHECK(quotient->dtype() == DType::float32);
  const auto wanted = [&](std::int64_t i, std::int64_t j, std::int64_t k) {
    return static_cast<float>(i * 5 + k) / std::max(static_cast<float>(j), 0.5f);
  };
  const Array all = read_all(*quotient);
  for (std::int64_t e = 0; e < 60; ++e)
    CHECK(all.elements<float>()[static_cast<std::size_t>(e)] == wanted(e / 15, e / 5 % 3, e % 5));
  float box[2 * 2 * 3];
  quotient->read(Shape{1, 1, 2}, Shape{2, 2, 3}, box);
  for (std::int64_t e = 0; e < 12; ++e) CHECK(box[e] == wanted(1 + e / 6, 1 + e / 3 % 2, 2 + e % 3));
  const auto scalar = safe_divide(make_source(floats({}, {3})), make_source(floats({}, {-2})), 2);
  CHECK(read_all(*scalar).elements<float>()[0] == 1.5f);
  CHECK(safe_divide(make_source(floats({2, 0}, {})), make_source(floats({1}, {3})))->shape() == Shape{2, 0});
}

TEST_CASE("types meet in the wider one, and the least denominator is first the denominator's") {
  const auto type = [](DType a, DType b) {
    return safe_divide(make_source(Array(a, {2})), make_source(Array(b, {2})))->dtype();
  };
  CHECK(type(DType::float16, DType::float16) == DType::float16);
  CHECK(type(DType::bfloat16, DType::float16) == DType::float32);
  CHECK(type(DType::float32, DType::bfloat16) == DType::float32);
  CHECK(type(DType::float64, DType::bfloat16) == DType::float64);
  CHECK(type(DType::int64, DType::boolean) == DType::float32);
  // 1e-10 is 0 in float16.
  Array one(DType::float16, {1});
  one.elements<float16>()[0] = float16(1.0f);
  const Array got = read_all(*safe_divide(make_source(one.view()), make_source(Array(DType::float16, {1}))));
  CHECK(static_cast<float>(got.elements<float16>()[0]) == INFINITY);
}

TEST_CASE("of zeros the larger is the one without a sign, and a least denominator is a number") {
  const auto one = [](float b, double least) {
    return read_all(*safe_divide(make_source(floats({1}, {1})), make_source(floats({1}, {b})), least))
        .elements<float>()[0];
  };
  CHECK(one(-0.0f, 0) == INFINITY);
  CHECK(one(0.0f, 0) == INFINITY);
  CHECK(one(-1.0f, 0) == INFINITY);
  CHECK(one(0.0f, -0.0) == INFINITY);
  CHECK(one(-0.0f, -0.0) == -INFINITY);
  CHECK(one(-0.0f, -1) == -INFINITY);
  CHECK(std::isnan(one(NAN, 0)));
  CHECK(test::error_of(Error::Kind::usage, [&] { (void)one(1, NAN); }) ==
        "the least denominator is NaN, and no number is the larger of the two");
}

TEST_CASE("long rows and many short ones are cut into jobs that cover them") {
  for (const Shape& shape : {Shape{3, 200'001}, Shape{200'001, 3}}) {
    Array a(DType::float32, shape), b(DType::float32, shape);
    for (std::size_t i = 0; i < 600'003; ++i) {
      a.elements<float>()[i] = static_cast<float>(i);
      b.elements<float>()[i] = static_cast<float>(i % 7);
    }
    const Array got = read_all(*safe_divide(make_source(a.view()), make_source(b.view()), 1));
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < 600'003; ++i)
      wrong += got.elements<float>()[i] != static_cast<float>(i) / std::max(static_cast<float>(i % 7), 1.0f);
    CHECK(wrong == 0);
  }
}
