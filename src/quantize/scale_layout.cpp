// Conversion of layouts of scales: each code is copied from its offset in one to that in the other. Cost: one
// pass over the scales, in memory.
// tests: tests/quantize/test_scale_layout.cpp
#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "core/axis.hpp"
#include "core/require.hpp"
#include "ejk/quantize.hpp"
#include "quantize/scale_grid.hpp"

namespace ejk {

namespace quantize {

namespace {

// The codes of float32 scales, which are powers of two.
Array e8m0_of(const Array& numbers, const std::string& name) {
  Array codes(DType::uint8, numbers.shape());
  const auto from = numbers.elements<std::uint32_t>();
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::uint32_t exponent = from[i] >> 23;
    // 2^-127 is subnormal.
    const bool is_least = from[i] == 1u << 22;
    if (!is_least && ((from[i] & 0x7FFFFFu) != 0 || exponent == 0 || exponent > 254))
      throw core::invalid("{}: element {} is {}, not a power of two from 2^-127 to 2^127", name,
                          to_string(core::index_of(numbers.shape(), static_cast<std::int64_t>(i))),
                          std::bit_cast<float>(from[i]));
    codes.data()[i] = static_cast<std::byte>(exponent);
  }
  return codes;
}

}  // namespace

}  // namespace quantize

Array convert_scale_layout(const ArraySource& scales, ScaleLayout from, ScaleLayout to,
                           std::optional<ScaleGridSize> grid) {
  using namespace quantize;
  const bool is_from_words = from == ScaleLayout::packed_columns,
             is_to_words = to == ScaleLayout::packed_columns;
  const std::string& name = scales.name();
  const DType dtype = scales.dtype();
  const bool is_word = dtype == DType::int32 || dtype == DType::uint32;
  const bool is_packable = is_to_words && from == ScaleLayout::linear && dtype == DType::float32;
  if (is_from_words ? !is_word : !is_packable && dtype != DType::uint8 && !is_8_bit_float(dtype))
    throw core::invalid("{}: scales of type {}, and layout {} is of {}", name, name_of(dtype), name_of(from),
                        is_from_words ? "int32, four codes in each" : "one byte each");
  const Shape& shape = scales.shape();
  Shape result = shape;
  if (from == ScaleLayout::linear) {
    if (shape.size() < 2)
      throw core::invalid("{}: scales of shape {} have no rows and columns", name, to_string(shape));
    const ScaleGridSize own{shape[shape.size() - 2], shape.back()};
    if (grid && (grid->rows != own.rows || grid->columns != own.columns))
      throw core::invalid("{}: scales of shape {} are no grid of {}x{}", name, to_string(shape), grid->rows,
                          grid->columns);
    grid = own;
  } else {
    if (!grid)
      throw core::usage("layout {} has padding, and the scales' rows and columns are needed", name_of(from));
    const Shape stored = stored_shape(from, {grid->rows, grid->columns});
    const std::int64_t each = stored[0] * stored[1], all = element_count(shape);
    const bool has_axes =
        shape.size() >= 2 && shape[shape.size() - 2] == stored[0] && shape.back() == stored[1];
    if (has_axes) {
      result[result.size() - 2] = grid->rows;
      result.back() = grid->columns;
    } else if (!is_from_words && each > 0 && all > 0 && all % each == 0) {
      result = {grid->rows, grid->columns};  // tiles that were flattened, or split into axes
      if (all > each) result.insert(result.begin(), all / each);
    } else {
      throw core::invalid("{}: scales of shape {}, and a grid of {}x{} has {} in layout {}", name,
                          to_string(shape), grid->rows, grid->columns, to_string(stored), name_of(from));
    }
  }
  Array resident = read_all(scales);
  if (is_packable) resident = e8m0_of(resident, name);
  const StoredGrid old{from, grid->rows, grid->columns};
  const StoredGrid made{to, grid->rows, grid->columns};
  Array out(is_to_words ? DType::int32 : is_from_words ? DType::uint8 : dtype, stored_shape(to, result));
  if (out.size() == 0) return out;  // its other axes may have any length
  std::int64_t matrices = 1;
  for (std::size_t d = 0; d + 2 < result.size(); ++d) matrices *= result[d];
  for (std::int64_t m = 0; m < matrices; ++m) {
    const std::byte* source = resident.data() + m * old.codes();
    std::byte* target = out.data() + m * made.codes();
    for (std::int64_t r = 0; r < grid->rows; ++r)
      for (std::int64_t c = 0; c < grid->columns; ++c) target[made.offset(r, c)] = source[old.offset(r, c)];
  }
  return out;
}

}  // namespace ejk
