// tests: tests/io/test_pieces.cpp
#include "io/pieces.hpp"

#include <algorithm>

namespace ejk::io {

void stream_elements(const ArraySource& source, const Sink& sink) {
  const std::int64_t size = size_of(source.dtype());
  const std::int64_t total = byte_count(source.shape(), source.dtype());
  if (const auto view = source.mapped(); view && view->is_c_contiguous()) {
    for (std::int64_t done = 0; done < total; done += kPieceBytes) {
      const std::int64_t n = std::min(kPieceBytes, total - done);
      sink(view->data + done, n);
      source.release(view->data + done, n);
    }
    return;
  }
  Array piece(DType::uint8, {std::min(total, kPieceBytes)});
  for_each_piece(source.shape(), kPieceBytes / size, [&](const Shape& start, const Shape& count) {
    source.read(start, count, piece.data());
    sink(piece.data(), element_count(count) * size);
  });
}

}  // namespace ejk::io
