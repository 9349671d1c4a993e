// The output is assembled in memory as write_together() would write it to a file: chunk by chunk, so that rank 0 has
// the array in memory once.
//
// tests: tests/app/test_parts.cpp
#include "parts.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sources.hpp"
#include "write_together.hpp"

namespace ejk::app {

Array gather_parts(Communicator& comm, const Output& output) {
  if (!output.parts) return comm.is_first() ? read_all(*output.source) : Array();
  Array whole;
  const auto no_progress = [](std::int64_t, std::int64_t) {};
  write_together(
      comm, {output}, no_progress, {}, [&](const std::vector<NamedArray>& arrays, const WriteOptions&) {
        const ArraySource& source = *arrays.front().source;
        whole = Array(source.dtype(), source.shape());
        std::byte* to = whole.data();
        for (const ArrayBox& piece : pieces_of(source.shape(), kPieceBytes / size_of(source.dtype()))) {
          source.read(piece.start, piece.count, to);
          to += byte_count(piece.count, source.dtype());
        }
      });
  return whole;
}

}  // namespace ejk::app
