// Parallel writing of an array's elements to a region of a regular file.
// tests: tests/io/test_parallel_write.cpp
#pragma once

#include <cstdint>
#include <string_view>

#include "ejk/array.hpp"

namespace ejk::io {

/// Whether that is worth it: a source that may be read in any order, and large enough.
bool is_written_in_parallel(const ArraySource& source);

/// Writes the header, at most some kilobytes, at byte `at` of the file, and all elements of a source in C
/// order behind it. Throws Error{output} with the file's name, and what the source throws.
void write_in_parallel(const ArraySource& source, std::string_view header, int fd, std::int64_t at,
                       std::string_view name);

}  // namespace ejk::io
