// Limits of the float formats against the types themselves.
#include "compare/float_type.hpp"

#include <doctest/doctest.h>

#include "core/elements.hpp"

using namespace ejk;

namespace {

template <class T>
void check_against_type(DType dtype, T (*neighbour)(T)) {
  CAPTURE(name_of(dtype));
  const verify::FloatType type = verify::float_type(dtype);
  const auto number = [](T x) {
    double value = 0;
    core::load(dtype_of<T>(), reinterpret_cast<const std::byte*>(&x), 0, 1, &value);
    return value;
  };
  for (const double value : {1.0, 1.5, 4.0, -3.0, 1000.0, 0x1p-14, 0x1p-16, 0.0}) {
    CAPTURE(value);
    const double size = std::abs(value);
    const T here = T(static_cast<float>(size));
    CHECK(type.spacing_at(value) == number(neighbour(here)) - number(here));
  }
  CHECK(type.epsilon() == type.spacing_at(1));
}

template <class T>
T next_bits(T x) {
  ++x.bits;
  return x;
}
template <class T>
T next_real(T x) {
  return std::nextafter(x, std::numeric_limits<T>::infinity());
}

}  // namespace

TEST_CASE("the spacing of a float type is the distance to the next number") {
  check_against_type<float16>(DType::float16, next_bits<float16>);
  check_against_type<bfloat16>(DType::bfloat16, next_bits<bfloat16>);
  check_against_type<float>(DType::float32, next_real<float>);
  check_against_type<double>(DType::float64, next_real<double>);
  CHECK(verify::float_type(DType::float64).spacing_at(0x1p-1073) == 0x1p-1074);
}

TEST_CASE("what is at least the overflow of a type rounds to infinity") {
  const auto rounded = [](auto type, double x) {
    using T = decltype(type);
    return std::isinf(static_cast<float>(T(core::rounded_to_odd(x))));
  };
  const double half = verify::float_type(DType::float16).overflow;
  CHECK(rounded(float16{}, half));
  CHECK_FALSE(rounded(float16{}, std::nextafter(half, 0)));
  const double brain = verify::float_type(DType::bfloat16).overflow;
  CHECK(rounded(bfloat16{}, brain));
  CHECK_FALSE(rounded(bfloat16{}, std::nextafter(brain, 0)));
  const double single = verify::float_type(DType::float32).overflow;
  CHECK(std::isinf(static_cast<float>(single)));
  CHECK_FALSE(std::isinf(static_cast<float>(std::nextafter(single, 0))));
}
