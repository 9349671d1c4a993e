// Inputs that a command needs in memory: a mapping, or a buffer that is filled when the elements are needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "ejk/array.hpp"
#include "ejk/io.hpp"
#include "ejk/report.hpp"

namespace ejk::app {

/// The buffer of an array that is read or written in pieces, for plans.
inline constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

/// The bytes of `buffers` buffers for arrays of at most `array_bytes` bytes: a buffer is no larger than its array,
/// a header, the rest of a page and a compressor's state.
inline std::int64_t piece_buffers(std::int64_t buffers, std::int64_t array_bytes) {
  constexpr std::int64_t kBeside = std::int64_t{128} << 10;
  return buffers * (std::min(array_bytes, kPieceBytes - kBeside) + kBeside);
}

inline std::shared_ptr<const ArraySource> in_memory(const ArraySource& source) {
  return make_source(read_all(source), source.name());
}

/// Adds the fields of kArrayKeys.
inline void add_array(Report& report, const ArraySource& array) {
  report.add("shape", "shape", array.shape())
      .add("dtype", "dtype", std::string(name_of(array.dtype())))
      .add("size", "size", byte_count(array.shape(), array.dtype()), Unit::bytes);
}

/// An input whose elements are needed in memory: its mapping, or a buffer that view() fills.
struct BufferedInput {
  std::string argument;                       // its name in the library: "lhs"
  std::shared_ptr<const ArraySource> source;  // null: not given
  Array elements = {};

  bool is_mapped() const { return source && source->mapped(); }
  std::int64_t bytes_to_buffer() const { return !source || is_mapped() ? 0 : type_of(*source).bytes(); }
  ArrayView view() {
    if (const auto mapped = source->mapped()) return *mapped;
    elements = read_all(*source);
    return elements.view();
  }
  /// A box of it, with the shape box.count. It replaces the buffer of an earlier call.
  ArrayView view(const ArrayBox& box) {
    if (const auto mapped = source->mapped()) return box_of(*mapped, box);
    elements = Array(source->dtype(), box.count);
    if (elements.size() > 0) source->read(box.start, box.count, elements.data());
    return elements.view();
  }
};

/// Returns f(). An error about one of these arguments is prefixed with the name of its input.
template <class Inputs, class F>
auto naming(const Inputs& inputs, F&& f) {
  try {
    return f();
  } catch (Error& error) {
    for (const BufferedInput* input : inputs)
      if (input->source && error.subject() == input->argument) error.at(input->source->name());
    throw;
  }
}

}  // namespace ejk::app
