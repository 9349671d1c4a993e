// A source of an array that is whole and unfiltered in mapped memory: that of a file, or of a buffered
// stream.
// tests: tests/io/test_npy.cpp
#pragma once

#include <memory>
#include <string>

#include "ejk/array.hpp"
#include "io/file.hpp"

namespace ejk::io {

enum class ByteOrder { native, swapped };
enum class ElementOrder { c, fortran };

/// What a file says of an array: enough to find each element.
struct ArrayLayout {
  DType dtype = DType::boolean;
  ByteOrder byte_order = ByteOrder::native;
  ElementOrder element_order = ElementOrder::c;
  Shape shape;
  std::int64_t offset = 0;  // of the first element, in bytes
  std::string storage;      // in words, where there is more to say than order and byte order
};

/// "C order", "deflated, Fortran order, big-endian".
std::string storage_of(const ArrayLayout& layout);

/// The array of `layout`, within the mapping, which several may share; with a view if aligned and in native
/// byte order. `file`, if the mapping is of one, is kept open for reads unless many are.
std::shared_ptr<const ArraySource> make_mapped_source(std::shared_ptr<const Mapping> mapping,
                                                      const ArrayLayout& layout, std::string name,
                                                      File file = {});

}  // namespace ejk::io
