// Numbers as elements: integers of all 64 bits, floats to the nearest, and what a dtype cannot hold.
#include "core/number.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "io/support.hpp"

using namespace ejk;

namespace {

std::string refused(DType dtype, const Number& number) {
  return test::error_of(Error::Kind::usage, [&] { (void)core::element_of(dtype, number); });
}

}  // namespace

TEST_CASE("an integer is held with all its bits, or refused") {
  for (const std::uint64_t value : {std::uint64_t{0}, (std::uint64_t{1} << 63) + 1, ~std::uint64_t{0}})
    CHECK(core::element_of(DType::uint64, value).elements<std::uint64_t>()[0] == value);
  for (const std::int64_t value : {INT64_MIN, INT64_MAX, (std::int64_t{1} << 53) + 1})
    CHECK(core::element_of(DType::int64, value).elements<std::int64_t>()[0] == value);
  CHECK(core::element_of(DType::uint64, 3.0).elements<std::uint64_t>()[0] == 3);
  CHECK(core::element_of(DType::boolean, std::int64_t{1}).elements<bool>()[0]);
  CHECK(refused(DType::int64, std::uint64_t{1} << 63) ==
        "int64 cannot hold the padding value 9223372036854775808");
  CHECK(refused(DType::uint64, std::int64_t{-1}) == "uint64 cannot hold the padding value -1");
  CHECK(refused(DType::uint64, 0x1p64) == "uint64 cannot hold the padding value 1.8446744073709552e+19");
  CHECK(refused(DType::int32, 1.5) == "int32 cannot hold the padding value 1.5");
  CHECK(refused(DType::int8, std::numeric_limits<double>::quiet_NaN()) ==
        "int8 cannot hold the padding value nan");
  CHECK(refused(DType::boolean, std::int64_t{2}) == "bool cannot hold the padding value 2");
  CHECK(refused(DType::boolean, 0.5) == "bool cannot hold the padding value 0.5");
}

TEST_CASE("a float is the nearest one, rounded once") {
  CHECK(core::element_of(DType::float32, 0.1).elements<float>()[0] == 0.1f);
  CHECK(core::element_of(DType::float64, ~std::uint64_t{0}).elements<double>()[0] == 0x1p64);
  // Just above the middle of 1 and the next bfloat16: by way of float32 it would be the middle itself.
  CHECK(core::element_of(DType::bfloat16, 1 + 0x1p-8 + 0x1p-40).elements<bfloat16>()[0].bits == 0x3F81);
  CHECK(core::element_of(DType::bfloat16, (std::int64_t{1} << 62) + (std::int64_t{1} << 54) + 1)
            .elements<bfloat16>()[0]
            .bits == 0x5E81);
  CHECK(std::isinf(static_cast<float>(core::element_of(DType::float16, 1e6).elements<float16>()[0])));
}
