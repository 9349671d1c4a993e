// A number as an element of a dtype.
// tests: tests/core/test_number.cpp
#pragma once

#include "ejk/array.hpp"

namespace ejk::core {

/// A scalar array of `number`: floats are rounded to nearest, infinite outside their range. Throws
/// Error{usage} if the dtype cannot represent it: integers exactly, bool 0 and 1.
Array element_of(DType dtype, const Number& number);

}  // namespace ejk::core
