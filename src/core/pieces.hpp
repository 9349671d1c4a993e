// Arrays as boxes whose elements, box after box, are in C order; items in ranges of equal cost.
// tests: tests/core/test_pieces.cpp
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ejk/array.hpp"

namespace ejk::core {

/// Boxes of at most `most` elements (≥ 1) in C order: one index of the leading axes, a range of one axis, and
/// whole trailing axes.
class Pieces {
 public:
  Pieces(std::span<const std::int64_t> shape, std::int64_t most);
  /// Advances to the next box; false after the last one.
  bool next();
  const Shape& start() const { return start_; }
  const Shape& count() const { return count_; }

 private:
  Shape shape_, start_, count_;
  std::size_t axis_ = 0;  // the axis that is cut; the axes after it are whole
  std::int64_t run_ = 1;
  bool begun_ = false, done_ = false;
};

/// The largest box of at most `most` elements (≥ 1) that begins at element `begin` in C order, and whose
/// elements are contiguous in C order. Returns their number. start and count have the shape's rank; begin is
/// less than the shape's number of elements.
std::int64_t box_at(std::span<const std::int64_t> shape, std::int64_t begin, std::int64_t most,
                    std::span<std::int64_t> start, std::span<std::int64_t> count);

/// Calls f(start, count) for the boxes of the elements begin ≤ i < end in C order; at most two for each axis.
template <class F>
void for_each_box(std::span<const std::int64_t> shape, std::int64_t begin, std::int64_t end, F&& f) {
  Shape start(shape.size()), count(shape.size());
  while (begin < end) {
    begin += box_at(shape, begin, end - begin, start, count);
    f(start, count);
  }
}

/// Cuts items into `parts` contiguous ranges of about equal cost: returns `parts` + 1 bounds, range r is
/// [bounds[r], bounds[r + 1]), perhaps empty. No range costs more than an equal part plus one item. Costs are
/// finite and ≥ 0; if all are 0, items count alike.
std::vector<std::int64_t> even_runs(std::span<const double> costs, std::int64_t parts);

/// Calls f(start, count) for each piece.
template <class F>
void for_each_piece(std::span<const std::int64_t> shape, std::int64_t most, F&& f) {
  for (Pieces pieces(shape, most); pieces.next();) f(pieces.start(), pieces.count());
}

}  // namespace ejk::core
