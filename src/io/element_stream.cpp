// Elements of an array as bytes, in place or through one buffer: 8 MiB if read in order, else 1 MiB
// (second-level cache).
// tests: tests/io/test_element_stream.cpp
#include "io/element_stream.hpp"

#include <algorithm>

namespace ejk::io {

void stream_elements(const ArraySource& source, const Sink& sink, std::string_view header) {
  constexpr std::int64_t kPage = 4096;
  const std::int64_t size = size_of(source.dtype());
  const std::int64_t total = byte_count(source.shape(), source.dtype());
  auto buffered = static_cast<std::int64_t>(header.size());
  const auto& view = source.mapped();
  if (source.access().prefer == ArrayAccess::Prefer::view && view->is_c_contiguous()) {
    if (buffered > 0) sink(header.data(), buffered);
    for (std::int64_t done = 0, n = 0; done < total; done += n) {
      n = std::min(kPieceBytes - (buffered + done) % kPage, total - done);
      sink(view->data + done, n);
      source.release(view->data + done, n);
    }
    return;
  }
  // A small piece is still in the second-level cache when the sink reads it.
  constexpr std::int64_t kCachedBytes = std::int64_t{1} << 20;
  const std::int64_t most = source.random_access() ? kCachedBytes : kPieceBytes;
  // The next piece is read after the header, or the rest of the last page.
  Array buffer(DType::uint8, {buffered + kPage + std::min(total, most)});
  std::copy_n(reinterpret_cast<const std::byte*>(header.data()), buffered, buffer.data());
  core::for_each_piece(source.shape(), most / size, [&](const Shape& start, const Shape& count) {
    source.read(start, count, buffer.data() + buffered);
    buffered += element_count(count) * size;
    const std::int64_t whole = buffered / kPage * kPage;
    if (whole > 0) sink(buffer.data(), whole);
    buffered -= whole;
    std::copy_n(buffer.data() + whole, buffered, buffer.data());
  });
  if (buffered > 0) sink(buffer.data(), buffered);
}

}  // namespace ejk::io
