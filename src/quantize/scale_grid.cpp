// Scales of blocks by row and column, read where they are stored: in place if they are in memory, else from a
// copy, which is at most 1/16 of the values.
// tests: tests/quantize/test_decode.cpp
#include "quantize/scale_grid.hpp"

#include <cstring>
#include <utility>

#include "core/elements.hpp"

namespace ejk::quantize {

ScaleReader::ScaleReader(std::shared_ptr<const ArraySource> scales, ScaleLayout layout, Shape grid,
                         std::size_t axis, const float* numbers)
    : scales_(std::move(scales)), layout_(layout), grid_(std::move(grid)), axis_(axis), numbers_(numbers) {
  // The grid as matrices: rows are the last axis other than that of the columns.
  const std::size_t rank = grid_.size();
  const std::int64_t columns = rank > 0 ? grid_[axis_] : 1;
  const std::int64_t rows = rank < 2 ? 1 : grid_[axis_ + 1 == rank ? rank - 2 : rank - 1];
  stored_ = {layout, rows, columns};
}

const ArrayView& ScaleReader::view() const {
  std::call_once(once_, [&] {
    const auto& mapped = scales_->mapped();
    const bool is_tiled = layout_ != ScaleLayout::linear && layout_ != ScaleLayout::packed_columns;
    if (mapped && (!is_tiled || mapped->is_c_contiguous())) {
      view_ = *mapped;
    } else {
      resident_ = read_all(*scales_);
      view_ = resident_.view();
    }
    // An axis of length 1, or a missing one, is repeated. Of one block there is no next: it has the step with which
    // rows that follow one another are one.
    steps_.assign(grid_.size(), 0);
    for (std::size_t d = 0; view_.rank() == std::ssize(grid_) && d < grid_.size(); ++d)
      if (view_.shape[d] > 1)
        steps_[d] = view_.strides[d];
      else if (d > 0 && grid_[d] == 1)
        steps_[d] = steps_[d - 1];
  });
  return view_;
}

bool ScaleReader::follow(std::size_t up) const {
  if (layout_ != ScaleLayout::linear) return false;
  view();
  return steps_[up] == grid_[up + 1] * steps_[up + 1];
}

void ScaleReader::read_linear(std::span<const std::int64_t> at, std::int64_t count, float* out) const {
  const ArrayView& scales = view();
  const std::byte* from = scales.data;
  for (std::size_t d = 0; d < at.size(); ++d) from += at[d] * steps_[d];
  const std::int64_t step = at.empty() ? 0 : steps_.back();
  if (numbers_ == nullptr) return core::load(scales.dtype, from, step, count, out);
  for (std::int64_t i = 0; i < count; ++i) out[i] = numbers_[static_cast<std::uint8_t>(from[i * step])];
}

void ScaleReader::read(std::span<const std::int64_t> at, std::int64_t count, float* out) const {
  if (layout_ == ScaleLayout::linear) return read_linear(at, count, out);
  const ArrayView& scales = view();
  const std::size_t rank = grid_.size();
  std::int64_t matrix = 0, row = 0;
  const std::size_t row_axis = rank < 2 ? rank : axis_ + 1 == rank ? rank - 2 : rank - 1;
  for (std::size_t d = 0; d < rank; ++d) {
    if (d == row_axis) row = at[d];
    if (d != row_axis && d != axis_) matrix = matrix * grid_[d] + at[d];
  }
  const bool along_columns = axis_ + 1 == rank;
  const std::int64_t column = rank > 0 ? at[axis_] : 0;
  const auto scale_at = [&](std::int64_t i) {
    return std::pair(along_columns ? row : row + i, along_columns ? column + i : column);
  };
  if (layout_ == ScaleLayout::packed_columns) {
    // The words are an array (matrices..., rows, columns / 4) with any strides.
    const std::byte* words = scales.data;
    const std::size_t axes = scales.shape.size();
    for (std::size_t d = axes - 2; d-- > 0; matrix /= scales.shape[d])
      words += matrix % scales.shape[d] * scales.strides[d];
    for (std::int64_t i = 0; i < count; ++i) {
      const auto [r, c] = scale_at(i);
      std::uint32_t word = 0;
      std::memcpy(&word, words + r * scales.strides[axes - 2] + c / 4 * scales.strides[axes - 1],
                  sizeof word);
      out[i] = numbers_[word >> (8 * (c % 4)) & 0xFFu];
    }
    return;
  }
  const std::byte* codes = scales.data + matrix * stored_.codes();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto [r, c] = scale_at(i);
    out[i] = numbers_[static_cast<std::uint8_t>(codes[stored_.offset(r, c)])];
  }
}

Shape stored_shape(ScaleLayout layout, const Shape& grid) {
  if (layout == ScaleLayout::linear) return grid;
  Shape shape = grid;
  if (shape.size() < 2) shape.insert(shape.begin(), 1);
  const std::size_t rank = shape.size();
  const StoredGrid stored{layout, shape[rank - 2], shape[rank - 1]};
  shape[rank - 2] = stored.padded_rows();
  shape[rank - 1] = stored.padded_columns() / (layout == ScaleLayout::packed_columns ? 4 : 1);
  return shape;
}

}  // namespace ejk::quantize
