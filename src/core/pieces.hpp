// Cutting an array into boxes that are small enough to hold and, in order, make up its elements in C order.
// tests: tests/core/test_pieces.cpp
#pragma once

#include <cstdint>
#include <span>

#include "ejk/array.hpp"

namespace ejk::core {

/// Boxes of at most `most` elements (≥ 1) that follow one another in C order: leading axes one index at a
/// time, then a run of one axis, then whole trailing axes.
class Pieces {
 public:
  Pieces(std::span<const std::int64_t> shape, std::int64_t most);
  /// Goes to the next box; false when there is none.
  bool next();
  const Shape& start() const { return start_; }
  const Shape& count() const { return count_; }

 private:
  Shape shape_, start_, count_;
  std::size_t axis_ = 0;  // the axis that is cut; behind it whole axes fit
  std::int64_t run_ = 1;
  bool begun_ = false, done_ = false;
};

/// The largest box that begins at element `begin` (counted in C order), holds at most `most` elements (≥ 1)
/// and whose elements follow one another in C order. Returns how many it holds. start and count have the
/// shape's rank; begin lies before the shape's last element.
std::int64_t box_at(std::span<const std::int64_t> shape, std::int64_t begin, std::int64_t most,
                    std::span<std::int64_t> start, std::span<std::int64_t> count);

/// Calls f(start, count) for the boxes that together are the elements begin <= i < end, counted in C order;
/// there are at most two for each axis.
template <class F>
void for_each_box(std::span<const std::int64_t> shape, std::int64_t begin, std::int64_t end, F&& f) {
  Shape start(shape.size()), count(shape.size());
  while (begin < end) {
    begin += box_at(shape, begin, end - begin, start, count);
    f(start, count);
  }
}

/// Calls f(start, count) for each piece.
template <class F>
void for_each_piece(std::span<const std::int64_t> shape, std::int64_t most, F&& f) {
  for (Pieces pieces(shape, most); pieces.next();) f(pieces.start(), pieces.count());
}

}  // namespace ejk::core
