// Element types: names, sizes, the two 16-bit floats against definitions written out here, and the 8-bit floats
// against those of torch and ml_dtypes.
#include "ejk/dtype.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <string>

#include "support/golden.hpp"

using namespace ejk;

TEST_CASE("every dtype is found by its own name") {
  for (const DType d : kDTypes) {
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

namespace {

float pattern(std::size_t bfloat16_bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat16_bits) << 16);
}

template <class T>
void check_codes(const golden::Case& c, Overflow overflow) {
  const auto values = c.out.at("values").elements<float>();
  for (std::size_t code = 0; code < 256; ++code) {
    T number;
    number.bits = static_cast<std::uint8_t>(code);
    const auto value = static_cast<float>(number);
    CAPTURE(code);
    CHECK((value == values[code] || (std::isnan(value) && std::isnan(values[code]))));
    if (std::isnan(value)) continue;
    CHECK(std::signbit(value) == std::signbit(values[code]));
    CHECK(T::rounded(value, T::kCodes.overflowed(Overflow::infinity)).bits == code);
  }
  const auto codes = c.out.at("codes").elements<std::uint8_t>();
  std::int64_t overflows = 0;
  for (std::size_t bits = 0; bits < codes.size(); ++bits) {
    const auto rounded = T::rounded(pattern(bits), T::kCodes.overflowed(overflow));
    CAPTURE(bits);
    CHECK(int{rounded.bits} == int{codes[bits]});
    if (overflow == T::default_overflow) CHECK(T(pattern(bits)).bits == rounded.bits);
    overflows += rounded.overflows;
    // Other codes of overflow change nothing else.
    for (const Overflow other : {Overflow::saturate, Overflow::nan}) {
      const auto again = T::rounded(pattern(bits), T::kCodes.overflowed(other));
      CHECK(again.overflows == rounded.overflows);
      if (!again.overflows) CHECK(again.bits == rounded.bits);
    }
    if (!rounded.overflows) continue;
    T saturated;
    saturated.bits = T::rounded(pattern(bits), T::kCodes.overflowed(Overflow::saturate)).bits;
    const auto largest = static_cast<float>(float_format_of<T>.largest);
    CHECK(std::abs(static_cast<float>(saturated)) == largest);
    CHECK(std::abs(pattern(bits)) > largest);
  }
  CHECK(overflows > 0);
}

}  // namespace

TEST_CASE("8-bit floats are those of torch and ml_dtypes, code by code") {
  std::set<DType> seen;
  for (const golden::Case& c : golden::load("float8")) {
    CAPTURE(c.name);
    const DType dtype = dtype_named(c.params["dtype"].get<std::string>()).value();
    const auto word = c.params["overflow"].get<std::string>();
    seen.insert(dtype);
    dispatch(dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (is_8_bit_float(dtype_of<T>()))
        check_codes<T>(c, word == "saturate" ? Overflow::saturate
                          : word == "nan"    ? Overflow::nan
                                             : Overflow::infinity);
    });
  }
  CHECK(std::ssize(seen) == std::ranges::count_if(kDTypes, is_8_bit_float));
}

TEST_CASE("an 8-bit float has the largest number of its format, and float32 rounds to its neighbours") {
  for (const DType dtype : kDTypes)
    dispatch(dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (is_8_bit_float(dtype_of<T>())) {
        for (unsigned code = 0; code < T::kCodes.largest; ++code) {
          T low, high;
          low.bits = static_cast<std::uint8_t>(code);
          high.bits = static_cast<std::uint8_t>(code + 1);
          const float middle = (static_cast<float>(low) + static_cast<float>(high)) / 2;
          CAPTURE(name_of(dtype));
          CAPTURE(code);
          const bool goes_up = dtype == DType::float8_e8m0fnu || code % 2 != 0;
          CHECK(T(middle).bits == (goes_up ? high : low).bits);
          CHECK(T(std::nextafter(middle, HUGE_VALF)).bits == high.bits);
          if (static_cast<float>(low) != 0x1p-127f)  // float32 has no digit to decide by, as torch does
            CHECK(T(std::nextafter(middle, 0.0f)).bits == low.bits);
        }
        T largest;
        largest.bits = static_cast<std::uint8_t>(T::kCodes.largest);
        CHECK(static_cast<double>(static_cast<float>(largest)) == float_format(dtype).largest);
      }
    });
  CHECK(static_cast<float>(float8_e8m0fnu(0.0f)) == 0x1p-127f);
  CHECK(float8_e8m0fnu(-4.0f).bits == 129);
}
