// The elements of an array as a stream of bytes.
// tests: tests/io/test_element_stream.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "core/pieces.hpp"
#include "ejk/array.hpp"

namespace ejk::io {

/// Buffer size for arrays that are read or written piece by piece.
inline constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

/// Consumes the next bytes of a stream.
using Sink = std::function<void(const void* data, std::int64_t bytes)>;

/// Streams the header (a multiple of 8 bytes), then all elements in C order, uncopied if contiguous in
/// memory, in page-aligned chunks, which the system writes fastest.
void stream_elements(const ArraySource& source, const Sink& sink, std::string_view header = {});

}  // namespace ejk::io
