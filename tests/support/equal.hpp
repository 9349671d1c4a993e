// An array compared with a golden one: dtype, shape and bytes.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "support/golden.hpp"

namespace golden {

inline void check_equal(const ejk::Array& got, const Case& c, const std::string& name) {
  CAPTURE(name);
  REQUIRE(c.out.count(name) == 1);
  const ejk::Array& expected = c.out.at(name);
  CHECK(ejk::name_of(got.dtype()) == ejk::name_of(expected.dtype()));
  REQUIRE(ejk::to_string(got.shape()) == ejk::to_string(expected.shape()));
  CHECK(std::memcmp(got.data(), expected.data(), static_cast<std::size_t>(got.bytes())) == 0);
}

}  // namespace golden
