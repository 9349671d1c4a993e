// Writing of one array by several threads: each computes and writes its own chunks, of second-level cache
// size and aligned in the file, since chunks that share no pages take half the time.
// tests: tests/io/test_parallel_write.cpp
#include "io/parallel_write.hpp"

#include <algorithm>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "io/file.hpp"

namespace ejk::io {

bool is_written_in_parallel(const ArraySource& source) {
  constexpr std::int64_t kWorthThreads = std::int64_t{4} << 20;
  return source.random_access() && byte_count(source.shape(), source.dtype()) >= kWorthThreads;
}

void write_in_parallel(const ArraySource& source, std::string_view header, int fd, std::int64_t at,
                       std::string_view name) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  const std::int64_t size = size_of(source.dtype()), total = byte_count(source.shape(), source.dtype());
  const std::int64_t before = at + std::ssize(header);  // of the elements
  const std::int64_t first = before / kPiece, pieces = core::ceil_div(before + total, kPiece) - first;
  const auto work = static_cast<double>(total);
  // The bytes of elements in piece i of the file: whole elements, wherever they begin.
  const auto begin_of = [&](std::int64_t i) {
    return std::clamp<std::int64_t>((first + i) * kPiece - before, 0, total) / size * size;
  };
  const auto& view = source.mapped();
  if (source.access().prefer == ArrayAccess::Prefer::view && view->is_c_contiguous()) {
    write_all_at(fd, header.data(), std::ssize(header), at, name);
    core::parallel_for(pieces, work, [&](std::int64_t i) {
      const std::int64_t begin = begin_of(i), n = begin_of(i + 1) - begin;
      write_all_at(fd, view->data + begin, n, before + begin, name);
      source.release(view->data + begin, n);
    });
    return;
  }
  const auto buffer_of_thread = [&] { return Array(DType::uint8, {std::ssize(header) + kPiece + size}); };
  const auto write_piece = [&](Array& buffer, std::int64_t i) {
    std::byte* to = buffer.data();
    if (i == 0) to = std::copy_n(reinterpret_cast<const std::byte*>(header.data()), header.size(), to);
    core::for_each_box(source.shape(), begin_of(i) / size, begin_of(i + 1) / size,
                       [&](const Shape& start, const Shape& count) {
                         source.read(start, count, to);
                         to += element_count(count) * size;
                       });
    write_all_at(fd, buffer.data(), to - buffer.data(), i == 0 ? at : before + begin_of(i), name);
  };
  core::parallel_reduce(pieces, core::threads_for(pieces, work), buffer_of_thread, write_piece,
                        [](const Array&) {});
}

}  // namespace ejk::io
