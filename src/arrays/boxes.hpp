// Sources as boxes of a fixed size, in place or through a buffer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "ejk/array.hpp"

namespace ejk::arrays {

/// Bytes of a source that a thread processes at once.
inline constexpr std::int64_t kBoxBytes = std::int64_t{4} << 20;

/// The boxes that a shape is cut into, in C order, and the number of elements before each.
struct Boxes {
  std::vector<Shape> starts, counts;
  std::vector<std::int64_t> before;

  Boxes(const Shape& shape, std::int64_t most_elements) {
    std::int64_t elements = 0;
    core::for_each_piece(shape, most_elements, [&](const Shape& start, const Shape& count) {
      starts.push_back(start);
      counts.push_back(count);
      before.push_back(elements);
      elements += element_count(count);
    });
    before.push_back(elements);
  }

  std::int64_t size() const { return static_cast<std::int64_t>(starts.size()); }
  std::int64_t elements(std::int64_t box) const {
    return before[static_cast<std::size_t>(box) + 1] - before[static_cast<std::size_t>(box)];
  }
};

/// What one box of a plan takes of memory.
inline std::int64_t bytes_of_a_box(std::size_t rank) {
  return 64 + 2 * (24 + 8 * static_cast<std::int64_t>(rank));
}

/// A source as boxes: in place if it is in memory in C order, else copied to a buffer.
class BoxReader {
 public:
  explicit BoxReader(const ArraySource& source) : source_(source), view_(source.mapped()) {
    if (view_ && !view_->is_c_contiguous()) view_.reset();
  }

  /// The elements of a box, which stay until the buffer is used again.
  const std::byte* acquire(const Boxes& boxes, std::int64_t box, std::vector<std::byte>& buffer) const {
    const auto b = static_cast<std::size_t>(box);
    const std::int64_t size = size_of(source_.dtype());
    if (view_) return view_->data + boxes.before[b] * size;
    buffer.resize(static_cast<std::size_t>(boxes.elements(box) * size));
    source_.read(boxes.starts[b], boxes.counts[b], buffer.data());
    return buffer.data();
  }

  /// The box will not be read again.
  void release(const Boxes& boxes, std::int64_t box) const {
    const std::int64_t size = size_of(source_.dtype());
    if (view_)
      source_.release(view_->data + boxes.before[static_cast<std::size_t>(box)] * size,
                      boxes.elements(box) * size);
  }

  /// How many threads to look with; an element takes one about `each` nanoseconds.
  int threads(const Boxes& boxes, double each) const { return threads(boxes, 0, boxes.size(), each); }
  /// The same for the boxes from `begin` up to `end` alone.
  int threads(const Boxes& boxes, std::int64_t begin, std::int64_t end, double each) const {
    const std::int64_t elements =
        boxes.before[static_cast<std::size_t>(end)] - boxes.before[static_cast<std::size_t>(begin)];
    return source_.random_access() ? core::threads_for(end - begin, each * static_cast<double>(elements)) : 1;
  }

 private:
  const ArraySource& source_;
  std::optional<ArrayView> view_;
};

}  // namespace ejk::arrays
