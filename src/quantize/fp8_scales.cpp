// The block of values that shares a scale of FP8. Scales of all values, of rows, columns or single values follow
// from the shapes. Other blocks are a guess: the last block of an axis may be cut short, so that the quotient of
// two lengths may be another block than the writer's (130 rows by 2 are blocks of 128 and of 2).
// tests: tests/quantize/test_fp8_scales.cpp
#include "quantize/fp8_scales.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/checked.hpp"
#include "core/require.hpp"

namespace ejk::quantize {

namespace {

// The name of an array without a slice and the suffix of a file.
std::string_view bare_name(std::string_view name) {
  if (name.ends_with(']')) name = name.substr(0, name.rfind('['));
  if (name.ends_with(".npy")) name.remove_suffix(4);
  return name;
}

// The axis of the values that the first axis of scales with fewer axes is of: rows, else the leading one.
std::size_t first_axis(const Shape& scales, const Shape& values) {
  const bool is_of_rows = scales.size() == 1 && scales[0] == values[values.size() - 2];
  return is_of_rows ? values.size() - 2 : 0;
}

Shape grid_of(const Shape& values, const Shape& block) {
  Shape grid(values.size());
  for (std::size_t d = 0; d < grid.size(); ++d) grid[d] = core::ceil_div(values[d], block[d]);
  return grid;
}

// The block of the last two axes that fits, of 128 rows or columns where these are not 1 or all.
std::optional<ScaleBlock> fitting_block(const Shape& values, const Shape& scales) {
  const std::size_t rank = values.size();
  if (rank < 2 || scales.size() != rank) return std::nullopt;
  std::int64_t lengths[2];
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t v = values[rank - 2 + i], s = scales[rank - 2 + i];
    if (s == core::ceil_div(v, kUsualBlock.rows))
      lengths[i] = kUsualBlock.rows;
    else if (s == v || s == 1)
      lengths[i] = s == v ? 1 : v;
    else
      return std::nullopt;
  }
  const ScaleBlock block{lengths[0], lengths[1]};
  return grid_of(values, along_axes(block, rank)) == scales ? std::optional(block) : std::nullopt;
}

}  // namespace

bool is_usual_block_name(std::string_view name) {
  name = bare_name(name);
  return name.ends_with("_scale_inv") || name.ends_with(".scale");
}

GlobalScale global_use(std::string_view name) {
  return bare_name(name).ends_with("weight_global_scale") ? GlobalScale::divides : GlobalScale::multiplies;
}

Shape spread_scales(const Shape& scales, const Shape& values) {
  const std::size_t rank = values.size();
  if (scales.empty() || scales.size() >= rank || element_count(scales) == 1) return scales;
  Shape shape(rank, 1);
  std::copy(scales.begin(), scales.end(),
            shape.begin() + static_cast<std::ptrdiff_t>(first_axis(scales, values)));
  return shape;
}

std::shared_ptr<const ArraySource> spread_scales(std::shared_ptr<const ArraySource> scales,
                                                 const Shape& values) {
  const Shape& stored = scales->shape();
  Shape shape = spread_scales(stored, values);
  if (shape == stored) return scales;
  const std::size_t axes = stored.size(), first = first_axis(stored, values);
  ArrayType type(scales->dtype(), std::move(shape));
  std::string name = scales->name();
  const ArrayAccess access(scales->access().order);
  return generated_source(
      std::move(type), std::move(name),
      [scales = std::move(scales), first, axes](std::span<const std::int64_t> start,
                                                std::span<const std::int64_t> count, void* out) {
        if (element_count(Shape(count.begin(), count.end())) > 0)
          scales->read(start.subspan(first, axes), count.subspan(first, axes), out);
      },
      access);
}

Shape along_axes(const ScaleBlock& block, std::size_t rank) {
  Shape lengths(rank, 1);
  lengths[rank - 2] = block.rows;
  lengths[rank - 1] = block.columns;
  return lengths;
}

std::optional<Shape> block_of_scales(const Shape& values, const Shape& stored, const BlockRule& rule) {
  const std::size_t rank = values.size();
  const Shape scales = spread_scales(stored, values);
  const bool is_one = element_count(scales) == 1;
  const auto fits = [&](const Shape& block) {
    const Shape grid = grid_of(values, block);
    return grid == scales || (is_one && element_count(grid) == 1);
  };
  if (rule.block) {
    if (rank < 2) return std::nullopt;
    Shape block = along_axes(*rule.block, rank);
    return fits(block) ? std::optional(std::move(block)) : std::nullopt;
  }
  Shape block(rank, 1);
  if (is_one) {
    for (std::size_t d = 0; d < rank; ++d) block[d] = std::max<std::int64_t>(values[d], 1);
    return block;
  }
  if (scales.size() != rank) return std::nullopt;
  if (rule.is_usual && rank >= 2 && fits(along_axes(kUsualBlock, rank))) return along_axes(kUsualBlock, rank);
  const bool may_guess = rule.guess && !rule.is_usual && stored.size() == rank;
  for (std::size_t d = 0; d < rank; ++d) {
    if (scales[d] == values[d]) continue;
    if (scales[d] == 0 || values[d] % scales[d] != 0) return std::nullopt;
    block[d] = std::max<std::int64_t>(values[d] / scales[d], 1);
    const bool is_power = std::has_single_bit(static_cast<std::uint64_t>(block[d]));
    if (scales[d] != 1 && !(may_guess && is_power)) return std::nullopt;
  }
  return block;
}

Error refused_scales(const ArraySource& scales, const Shape& values) {
  const Shape& shape = scales.shape();
  const std::size_t rank = values.size();
  bool divide = shape.size() == rank;
  for (std::size_t d = 0; divide && d < rank; ++d) divide = shape[d] > 0 && values[d] % shape[d] == 0;
  std::string blocks;
  if (divide) {
    Shape quotients(rank);
    for (std::size_t d = 0; d < rank; ++d) quotients[d] = values[d] / shape[d];
    blocks = fmt::format(" into blocks of {}, which are not guessed", fmt::join(quotients, "x"));
  }
  Error error =
      core::invalid("{}: scales of shape {} {} values of shape {}{}", scales.name(), to_string(shape),
                    divide ? "divide" : "do not divide", to_string(values), blocks);
  if (const auto block = fitting_block(values, shape))
    error.hint(fmt::format("block={} fits", to_string(*block)));
  else if (shape.size() == 1 && rank == 2)
    error.hint(fmt::format("scales of rows are ({},) or ({}, 1), of columns (1, {})", values[0], values[0],
                           values[1]));
  else
    error.hint("block=RxC says which rows and columns share a scale");
  return error;
}

}  // namespace ejk::quantize
