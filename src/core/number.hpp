// A number as an element of a dtype.
// tests: tests/core/test_number.cpp
#pragma once

#include "ejk/array.hpp"

namespace ejk::core {

/// An array without axes that holds `number`: floats to the nearest, infinite beyond their range. Throws Error{usage}
/// where the dtype cannot hold it: integers exactly, bool 0 and 1.
Array element_of(DType dtype, const Number& number);

}  // namespace ejk::core
