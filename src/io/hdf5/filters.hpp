// Decoders of HDF5 filters: a chunk's stored bytes become exactly its elements, or an Error. (The HDF5
// library does not compare the output of filters with the chunk's size, and reads past its end.)
// Source: the HDF5 file format, "Data Storage - Filter Pipeline", and the library's documentation of each
// filter; deflate is zlib's format (RFC 1950), lzf that of liblzf 3.6, as in h5py.
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

/// Undoes the filters, which stand in the order in which they were applied, at most one of them a
/// compression. Filter i was left out for this chunk where bit i of `left_out` is set. `bytes` holds what is
/// stored and becomes what the chunk holds: `size` bytes. `spare` is a workspace. Throws Error{input} saying
/// how the stored bytes are damaged, without a name.
void undo_filters(std::span<const Filter> filters, std::uint32_t left_out, std::int64_t size, Bytes& bytes,
                  Bytes& spare);

}  // namespace ejk::io
