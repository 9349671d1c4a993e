// Boxes that cut an array into pieces of a given size. Trailing axes are whole while they fit; the next is
// cut; those before it advance one index at a time.
// tests: tests/core/test_pieces.cpp
#include "core/pieces.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/require.hpp"

namespace ejk::core {

Pieces::Pieces(std::span<const std::int64_t> shape, std::int64_t most)
    : shape_(shape.begin(), shape.end()), start_(shape.size(), 0), count_(shape_) {
  done_ = std::find(shape.begin(), shape.end(), 0) != shape.end();
  if (done_) return;
  std::size_t whole = shape.size();
  std::int64_t inner = 1;
  while (whole > 0 && shape[whole - 1] <= most / inner) inner *= shape[--whole];
  if (whole == 0) return;  // all of it is one piece
  axis_ = whole - 1;
  run_ = std::max<std::int64_t>(most / inner, 1);
  std::fill_n(count_.begin(), axis_, 1);
  count_[axis_] = run_;
}

bool Pieces::next() {
  if (done_) return false;
  if (!std::exchange(begun_, true)) return true;
  if (shape_.empty() || count_ == shape_) return done_ = true, false;
  start_[axis_] += count_[axis_];
  for (std::size_t d = axis_; start_[d] == shape_[d]; --d) {  // carry, as in counting
    if (d == 0) return done_ = true, false;
    start_[d] = 0;
    ++start_[d - 1];
  }
  count_[axis_] = std::min(run_, shape_[axis_] - start_[axis_]);
  return true;
}

std::int64_t box_at(std::span<const std::int64_t> shape, std::int64_t begin, std::int64_t most,
                    std::span<std::int64_t> start, std::span<std::int64_t> count) {
  std::int64_t inner = 1;  // elements of all axes from d on, which the box takes whole
  std::size_t d = shape.size();
  while (d > 0 && begin % (inner * shape[d - 1]) == 0 && shape[d - 1] <= most / inner) {
    --d;
    inner *= shape[d];
    start[d] = 0;
    count[d] = shape[d];
  }
  std::int64_t index = begin / inner;
  std::int64_t run = 1;
  for (bool first = true; d > 0; first = false) {
    --d;
    start[d] = index % shape[d];
    index /= shape[d];
    count[d] = first ? run = std::min(most / inner, shape[d] - start[d]) : 1;
  }
  return run * inner;
}

std::vector<std::int64_t> even_runs(std::span<const double> costs, std::int64_t parts) {
  require_ranks(parts);
  const auto items = static_cast<std::int64_t>(costs.size());
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  std::vector<std::int64_t> bounds{0};
  double before = 0;
  std::int64_t item = 0;
  for (std::int64_t part = 1; part < parts; ++part) {
    if (all > 0) {
      const double target = all / static_cast<double>(parts) * static_cast<double>(part);
      // An item belongs to the run with its larger half.
      while (item < items && before + costs[static_cast<std::size_t>(item)] / 2 <= target)
        before += costs[static_cast<std::size_t>(item++)];
    } else {
      item = items / parts * part + std::min(items % parts, part);
    }
    bounds.push_back(item);
  }
  bounds.push_back(items);
  return bounds;
}

}  // namespace ejk::core

namespace ejk {

std::vector<ArrayBox> pieces_of(const Shape& shape, std::int64_t most) {
  std::vector<ArrayBox> pieces;
  core::for_each_piece(shape, most, [&](const Shape& start, const Shape& count) {
    pieces.push_back({start, count});
  });
  return pieces;
}

}  // namespace ejk
