// identity_dtype_convert: golden cases.
#include "ejk/attention.hpp"
#include "support/arrays.hpp"
#include "support/golden.hpp"

using namespace ejk;

TEST_CASE("identity_dtype_convert keeps its input and converts its gradient") {
  int cases = 0;
  for (const golden::Case& c : golden::load("identity_dtype_convert")) {
    CAPTURE(c.name);
    ++cases;
    const DType dtype = *dtype_named(c.params.at("dtype").get<std::string>());
    const ArrayView x = c.in.at("x").view();
    CHECK(plain::same_bytes(Array::copy_of(identity_dtype_convert(x, dtype)), c.out.at("out")));
    const Array got = identity_dtype_convert_backward(c.in.at("cotangent").view(), dtype);
    const Array& expected = c.out.at("grad");
    CHECK(got.dtype() == expected.dtype());
    const auto values = plain::doubles(got.view()), right = plain::doubles(expected.view());
    REQUIRE(values.size() == right.size());
    for (std::size_t i = 0; i < right.size(); ++i)
      CHECK((std::isnan(right[i])
                 ? std::isnan(values[i])
                 : values[i] == right[i] && std::signbit(values[i]) == std::signbit(right[i])));
  }
  CHECK(cases == 11);
}

TEST_CASE("a float64 gradient is rounded to 16 bits once") {
  // Just above the middle of two neighbours: by way of float32 it would fall on it, and to the even one.
  const std::vector<double> values{1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-11 + 0x1p-40, 1e300, -1e300};
  const Array gradient = Array::from<double>({4}, values);
  CHECK(plain::doubles(identity_dtype_convert_backward(gradient.view(), DType::bfloat16).view())[0] ==
        1 + 0x1p-7);
  const auto half = plain::doubles(identity_dtype_convert_backward(gradient.view(), DType::float16).view());
  CHECK(half[1] == 1 + 0x1p-10);
  CHECK(half[2] == std::numeric_limits<double>::infinity());
  CHECK(half[3] == -std::numeric_limits<double>::infinity());
}

TEST_CASE("a gradient of any shape and strides is converted, long ones in pieces") {
  std::mt19937_64 engine(7);
  const Array gradient = plain::random(DType::float32, {37, 301}, engine);
  for (int how = 0; how < 4; ++how) {
    const Array got = identity_dtype_convert_backward(plain::Laid(gradient, how).view(), DType::bfloat16);
    CHECK(
        plain::same_bytes(got, plain::array_of(DType::bfloat16, {37, 301}, plain::doubles(gradient.view()))));
  }
  CHECK(identity_dtype_convert_backward(plain::filled(DType::float16, {3, 0}, 0).view(), DType::float64)
            .size() == 0);
}

TEST_CASE("only floats have gradients") {
  const Array integers(DType::int32, {2});
  const Array floats(DType::float32, {2});
  CHECK_THROWS_AS(identity_dtype_convert(integers.view(), DType::float32), Error);
  CHECK_THROWS_AS(identity_dtype_convert(floats.view(), DType::int8), Error);
  CHECK_THROWS_AS(identity_dtype_convert_backward(integers.view(), DType::float32), Error);
  CHECK_THROWS_AS(identity_dtype_convert_backward(floats.view(), DType::boolean), Error);
}
