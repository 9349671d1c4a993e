// Scales of blocks in any layout: their offsets, and a reader of them as float.
// tests: tests/quantize/test_scale_layout.cpp, tests/quantize/test_decode.cpp
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "core/checked.hpp"
#include "ejk/array.hpp"
#include "ejk/quantize.hpp"

namespace ejk::quantize {

/// Whether global scales of a shape are one, or one for each index of the leading axis of `values`.
inline bool is_global_shape(const Shape& global, const Shape& values) {
  const std::int64_t n = element_count(global);
  return n == 1 || (values.size() > 1 && !global.empty() && global[0] == values[0] && n == values[0]);
}

/// A grid of scales (matrices, rows, columns) as it is stored in a layout, in elements of one code.
struct StoredGrid {
  ScaleLayout layout = ScaleLayout::linear;
  std::int64_t rows = 0, columns = 0;

  /// Rows and columns with padding.
  std::int64_t padded_rows() const {
    const std::int64_t tile = layout == ScaleLayout::tiles_128x4 ? 128
                              : layout == ScaleLayout::tiles_8x4 ? 8
                                                                 : 1;
    return core::round_up(rows, tile);
  }
  std::int64_t padded_columns() const {
    return layout == ScaleLayout::linear ? columns : core::round_up(columns, 4);
  }
  std::int64_t codes() const { return padded_rows() * padded_columns(); }
  /// Where a scale is in its matrix.
  std::int64_t offset(std::int64_t r, std::int64_t c) const {
    const std::int64_t tiles = core::ceil_div(columns, 4);
    if (layout == ScaleLayout::tiles_128x4)
      return 512 * (r / 128 * tiles + c / 4) + 16 * (r % 32) + 4 * (r % 128 / 32) + c % 4;
    if (layout == ScaleLayout::tiles_8x4) return 32 * (r / 8 * tiles + c / 4) + 4 * (r % 8) + c % 4;
    return r * padded_columns() + c;
  }
};

/// Reads scales as float: numbers of a float type, or codes by a table of numbers.
class ScaleReader {
 public:
  /// `grid`: blocks along each axis of the decoded array. Linear scales have this shape or broadcast to it,
  /// or are one number. In other layouts `axis` is that of the columns. `numbers` is null for scales that are
  /// numbers.
  ScaleReader(std::shared_ptr<const ArraySource> scales, ScaleLayout layout, Shape grid, std::size_t axis,
              const float* numbers);

  /// Whether scales along the axis after `up` go on from its last one to the first of the next along `up`.
  bool follow(std::size_t up) const;

  /// `count` scales of blocks from `at` on along the last axis.
  void read(std::span<const std::int64_t> at, std::int64_t count, float* out) const;

 private:
  const ArrayView& view() const;
  void read_linear(std::span<const std::int64_t> at, std::int64_t count, float* out) const;

  std::shared_ptr<const ArraySource> scales_;
  ScaleLayout layout_;
  Shape grid_;
  std::size_t axis_;
  const float* numbers_;
  StoredGrid stored_;
  mutable std::once_flag once_;
  mutable Array resident_;
  mutable ArrayView view_;
  mutable Shape steps_;  // bytes along each axis, of linear scales; set by view()
};

/// The shape of stored scales of a grid whose last two axes are rows and columns.
Shape stored_shape(ScaleLayout layout, const Shape& grid);

}  // namespace ejk::quantize
