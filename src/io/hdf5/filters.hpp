// Decoders of HDF5 filters, which check the size of the output (the HDF5 library does not).
// tests: tests/io/test_filters.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ejk::io {

using Bytes = std::vector<std::byte>;

struct Filter {
  enum class Kind { deflate, shuffle, fletcher32, lzf };
  Kind kind = Kind::deflate;
  std::int64_t element_bytes = 1;  // shuffle: the bytes of an element, which it puts into as many planes
};

/// The filter of that number, if it is undone here.
std::optional<Filter::Kind> filter_kind(int id);

/// Whether what it yields has another length than what goes in, which only the chunk says.
inline bool is_compression(Filter::Kind kind) {
  return kind == Filter::Kind::deflate || kind == Filter::Kind::lzf;
}

/// Decodes `bytes` to `size` bytes. Filters are in order of application, at most one a compression; bit i of
/// `left_out` skips filter i. `spare` is a workspace. Throws Error{input} without a name.
void undo_filters(std::span<const Filter> filters, std::uint32_t left_out, std::int64_t size, Bytes& bytes,
                  Bytes& spare);

}  // namespace ejk::io
