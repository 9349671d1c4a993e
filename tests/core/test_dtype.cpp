// Element types: names, sizes, and the two 16-bit floats against definitions written out here.
#include "ejk/dtype.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace ejk;

TEST_CASE("every dtype is found by its own name") {
  for (int i = 0; i <= static_cast<int>(DType::float64); ++i) {
    const auto d = static_cast<DType>(i);
    CHECK(dtype_named(name_of(d)) == d);
    dispatch(d, [&]<class T>(std::type_identity<T>) {
      CHECK(static_cast<std::int64_t>(sizeof(T)) == size_of(d));
      CHECK(dtype_of<T>() == d);
    });
  }
  CHECK_FALSE(dtype_named("float"));
}

TEST_CASE("float16 has the value of its sign, exponent and fraction, and every value survives a round trip") {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    float16 h;
    h.bits = static_cast<std::uint16_t>(bits);
    const int exponent = (bits >> 10) & 31;
    const int fraction = bits & 1023;
    const auto back = static_cast<float>(h);
    if (exponent == 31 && fraction != 0) {
      CHECK(std::isnan(back));
      CHECK(std::isnan(static_cast<float>(float16(back))));
      continue;
    }
    double expected = exponent == 31  ? INFINITY
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
    if (bits & 0x8000) expected = -expected;
    CHECK(static_cast<double>(back) == expected);
    CHECK(float16(back).bits == bits);
  }
}

TEST_CASE("conversion to float16 takes the nearest value, the even one of two") {
  // Between each pair of neighbours: just below, at, and just above the middle.
  for (unsigned bits = 0; bits < 0x7BFF; ++bits) {
    float16 low, high;
    low.bits = static_cast<std::uint16_t>(bits);
    high.bits = static_cast<std::uint16_t>(bits + 1);
    const float middle = (static_cast<float>(low) + static_cast<float>(high)) / 2;
    CHECK(float16(middle).bits == (bits % 2 == 0 ? bits : bits + 1));
    CHECK(float16(std::nextafter(middle, 0.0f)).bits == bits);
    CHECK(float16(std::nextafter(middle, 1e9f)).bits == bits + 1);
  }
  CHECK(float16(65519.99f).bits == 0x7BFF);
  CHECK(float16(65520.0f).bits == 0x7C00);
  CHECK(float16(-1e30f).bits == 0xFC00);
}

TEST_CASE("conversion to bfloat16 takes the nearest value, the even one of two") {
  CHECK(bfloat16(1.0f).bits == 0x3F80);
  CHECK(bfloat16(1.00390625f).bits == 0x3F80);  // half way, down to even
  CHECK(bfloat16(1.01171875f).bits == 0x3F82);  // half way, up to even
  CHECK(bfloat16(std::nextafter(1.00390625f, 2.0f)).bits == 0x3F81);
  CHECK(bfloat16(3.4e38f).bits == 0x7F80);
  CHECK(std::isnan(static_cast<float>(bfloat16(NAN))));
}
