// An array's elements as a stream of bytes, piece by piece.
// tests: tests/io/test_pieces.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "core/pieces.hpp"
#include "ejk/array.hpp"

namespace ejk::io {

/// What is held of an array that is read or written piece by piece.
inline constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

using core::for_each_piece;
using core::Pieces;

/// The bytes of one element, `n` times.
void repeat_element(std::string_view element, std::int64_t n, std::byte* to);

/// Takes the next bytes of a stream.
using Sink = std::function<void(const void* data, std::int64_t bytes)>;

/// The header (a multiple of 8 bytes), then all elements of a source in C order, piece by piece; from where
/// they lie when they lie in order. Every piece of elements but the last ends at a multiple of the page size,
/// counted from the header's begin: the system writes such pieces fastest.
void stream_elements(const ArraySource& source, const Sink& sink, std::string_view header = {});

}  // namespace ejk::io
