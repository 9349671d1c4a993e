// Writing of a box of elements into a pre-sized file, by pwrite, so that two machines never own copies of one
// page. Short ranges, whose system calls serialise across processes, are copied through a mapping on a single
// machine.
// tests: tests/io/test_elements.cpp
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "ejk/io.hpp"
#include "io/atomic_file.hpp"
#include "io/file.hpp"

namespace ejk {

namespace {

// The number of trailing axes that a box spans whole.
std::size_t whole_axes(const Shape& shape, const Shape& count) {
  std::size_t whole = 0;
  while (whole < shape.size() && count[shape.size() - 1 - whole] == shape[shape.size() - 1 - whole]) ++whole;
  return whole;
}

// Bytes of the contiguous ranges of a box.
std::int64_t run_bytes(const Shape& shape, const Shape& count, std::int64_t size) {
  const std::size_t whole = std::min(shape.size(), whole_axes(shape, count) + 1);
  for (std::size_t d = shape.size() - whole; d < shape.size(); ++d) size *= count[d];
  return size;
}

// f(elements, bytes, byte offset in the array) for the contiguous ranges of a box that begins at `start`.
template <class F>
void for_each_run(const Shape& shape, std::int64_t size, const Shape& start, const Shape& count,
                  const std::byte* elements, F&& f) {
  const std::size_t rank = shape.size(), outer = rank - std::min(rank, whole_axes(shape, count) + 1);
  const std::int64_t run = run_bytes(shape, count, size);
  Shape at = start;
  for (bool more = true; more; elements += run) {
    std::int64_t index = 0;
    for (std::size_t d = 0; d < rank; ++d) index = index * shape[d] + at[d];
    f(elements, run, index * size);
    more = false;
    for (std::size_t d = outer; d-- > 0 && !more;) {
      more = ++at[d] < start[d] + count[d];
      if (!more) at[d] = start[d];
    }
  }
}

// The array's region of the file, mapped; none unless the file system has allocated it (else SIGBUS).
class MappedRegion {
 public:
  MappedRegion(int fd, const ElementRegion& place, std::int64_t bytes) {
    if (fallocate(fd, 0, place.offset, bytes) != 0) {
      if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
        throw io::system_error(Error::Kind::output, place.name, errno);
      return;
    }
    const std::int64_t before = place.offset % sysconf(_SC_PAGESIZE);
    bytes_ = static_cast<std::size_t>(before + bytes);
    void* const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, place.offset - before);
    if (at == MAP_FAILED) return;
    begin_ = at;
    elements_ = static_cast<std::byte*>(at) + before;
  }
  ~MappedRegion() {
    if (begin_ != nullptr) munmap(begin_, bytes_);
  }
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  std::byte* elements() const { return elements_; }

 private:
  void* begin_ = nullptr;
  std::size_t bytes_ = 0;
  std::byte* elements_ = nullptr;
};

}  // namespace

void write_elements(const ElementRegion& region, const Shape& shape, const ArrayBox& box,
                    const ArraySource& elements, Sync sync) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  const std::int64_t size = size_of(elements.dtype()), all = element_count(box.count);
  if (all == 0) return;
  io::File file(open(region.path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.is_open()) throw io::system_error(Error::Kind::output, region.name, errno);
  constexpr std::int64_t kShortRun = 4096;
  std::optional<MappedRegion> mapped;
  if (region.is_local && run_bytes(shape, box.count, size) < kShortRun && all > 1)
    mapped.emplace(file.fd(), region, byte_count(shape, elements.dtype()));
  std::byte* const memory = mapped ? mapped->elements() : nullptr;
  const auto write_run = [&](const std::byte* from, std::int64_t bytes, std::int64_t at) {
    if (memory != nullptr)
      std::memcpy(memory + at, from, static_cast<std::size_t>(bytes));
    else
      io::write_all_at(file.fd(), from, bytes, region.offset + at, region.name);
  };
  const std::int64_t most = kPiece / size, pieces = core::ceil_div(all, most);
  const auto write = [&](Array& buffer, std::int64_t n) {
    core::for_each_box(box.count, n * most, std::min(all, (n + 1) * most),
                       [&](const Shape& start, const Shape& count) {
                         elements.read(start, count, buffer.data());
                         Shape at = start;
                         for (std::size_t d = 0; d < at.size(); ++d) at[d] += box.start[d];
                         for_each_run(shape, size, at, count, buffer.data(), write_run);
                       });
  };
  const auto buffer_of_thread = [&] { return Array(DType::uint8, {std::min(all, most) * size}); };
  const int threads =
      elements.random_access() ? core::threads_for(pieces, static_cast<double>(all * size)) : 1;
  core::parallel_reduce(pieces, threads, buffer_of_thread, write, [](const Array&) {});
  mapped.reset();
  if (sync == Sync::now) io::sync_now(file.fd(), region.name);
  if (const int code = file.close(); code != 0)
    throw io::system_error(Error::Kind::output, region.name, code);
}

std::shared_ptr<void> share_temporary(const std::string& path) {
  using io::TemporaryPath;
  return {new TemporaryPath(path, TemporaryPath::Kind::file), [](TemporaryPath* shared) {
            shared->keep();
            delete shared;
          }};
}

}  // namespace ejk
