// A NumPy basic slice of an array, as a source that reads only the selected elements.
// tests: tests/io/test_slice.cpp
#pragma once

#include <memory>
#include <span>
#include <string>

#include "ejk/io.hpp"

namespace ejk::io {

/// `source[slice]`. Throws Error{input} for an index outside of its axis or more entries than axes.
std::shared_ptr<const ArraySource> make_sliced_source(std::shared_ptr<const ArraySource> source,
                                                      std::span<const SliceItem> slice, std::string name);

}  // namespace ejk::io
