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
  Shape strides = {};       // in bytes; none: those of the element order
  std::int64_t offset = 0;  // of the first element, in bytes
  std::string storage;      // in words, where there is more to say than order and byte order
};

/// "C order", "deflated, Fortran order, big-endian".
std::string storage_of(const ArrayLayout& layout);

/// The array of `layout`, within the mapping, which several may share; with a view if aligned and in native
/// byte order. `file`, if the mapping is of one, serves large reads.
std::shared_ptr<const ArraySource> make_mapped_source(std::shared_ptr<const Mapping> mapping,
                                                      const ArrayLayout& layout, std::string name,
                                                      std::shared_ptr<const File> file = nullptr);

/// A whole regular file, mapped, and open for large reads unless many files are.
struct MappedFile {
  MappedFile(File opened, std::int64_t size, std::string_view name);

  std::shared_ptr<const Mapping> mapping;
  std::shared_ptr<const File> file;  // null: closed
};

}  // namespace ejk::io
