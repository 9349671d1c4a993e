// Elements of an array into their place in a file that is laid out already: a box in pieces, each piece in the
// runs that its elements are in C order. Processes may share the work, each with boxes of its own; they write
// with pwrite(2) and map nothing, so that two machines never own copies of one page.
// tests: tests/io/test_elements.cpp
#include <fcntl.h>

#include <algorithm>
#include <string>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "ejk/io.hpp"
#include "io/atomic_file.hpp"
#include "io/file.hpp"

namespace ejk {

namespace {

// Of a box, how many trailing axes it spans whole; elements of those, and of one axis before, follow one another.
std::size_t whole_axes(const Shape& shape, const Shape& count) {
  std::size_t whole = 0;
  while (whole < shape.size() && count[shape.size() - 1 - whole] == shape[shape.size() - 1 - whole]) ++whole;
  return whole;
}

// Writes a piece of elements in C order, which begins at `start` in the array.
void write_piece(int fd, const ElementPlace& place, const Shape& shape, std::int64_t size, const Shape& start,
                 const Shape& count, const std::byte* elements) {
  const std::size_t rank = shape.size(), outer = rank - std::min(rank, whole_axes(shape, count) + 1);
  std::int64_t run = size;
  for (std::size_t d = outer; d < rank; ++d) run *= count[d];
  Shape at = start;
  for (bool more = true; more; elements += run) {
    std::int64_t index = 0;
    for (std::size_t d = 0; d < rank; ++d) index = index * shape[d] + at[d];
    io::write_all_at(fd, elements, run, place.offset + index * size, place.name);
    more = false;
    for (std::size_t d = outer; d-- > 0 && !more;) {
      more = ++at[d] < start[d] + count[d];
      if (!more) at[d] = start[d];
    }
  }
}

}  // namespace

void write_elements(const ElementPlace& place, const Shape& shape, const ArrayBox& box,
                    const ArraySource& elements, Sync sync) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  const std::int64_t size = size_of(elements.dtype()), all = element_count(box.count);
  if (all == 0) return;
  io::File file(open(place.path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.is_open()) throw io::system_error(Error::Kind::output, place.name, errno);
  const std::int64_t most = kPiece / size, pieces = core::ceil_div(all, most);
  const auto write = [&](Array& buffer, std::int64_t n) {
    core::for_each_box(box.count, n * most, std::min(all, (n + 1) * most),
                       [&](const Shape& start, const Shape& count) {
                         elements.read(start, count, buffer.data());
                         Shape at = start;
                         for (std::size_t d = 0; d < at.size(); ++d) at[d] += box.start[d];
                         write_piece(file.fd(), place, shape, size, at, count, buffer.data());
                       });
  };
  const auto buffer_of_thread = [&] { return Array(DType::uint8, {std::min(all, most) * size}); };
  const int threads =
      elements.random_access() ? core::threads_for(pieces, static_cast<double>(all * size)) : 1;
  core::parallel_reduce(pieces, threads, buffer_of_thread, write, [](const Array&) {});
  if (sync == Sync::now) io::sync_now(file.fd(), place.name);
  if (const int code = file.close(); code != 0) throw io::system_error(Error::Kind::output, place.name, code);
}

struct ForeignTemporary::Slot {
  io::TemporaryPath path;
};

ForeignTemporary::ForeignTemporary(const std::string& path)
    : slot_(std::make_unique<Slot>(Slot{io::TemporaryPath(path, io::TemporaryPath::Kind::file)})) {}

ForeignTemporary::~ForeignTemporary() { slot_->path.keep(); }

}  // namespace ejk
