// Conversion of contiguous elements to another type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "ejk/array_math.hpp"
#include "ejk/dtype.hpp"

namespace ejk::arrays {

/// Converts n contiguous elements, by the rules of convert_array. Returns the index of the first
/// that the new type cannot hold, if there is one.
std::optional<std::int64_t> convert_elements(DType from_type, const std::byte* from, DType to_type,
                                             std::byte* to, std::int64_t n,
                                             const OverflowSettings& overflows = {});

/// The array, which outlives the result; one of 8-bit floats as float32.
inline std::shared_ptr<const ArraySource> with_wide_floats(const ArraySource& source) {
  std::shared_ptr<const ArraySource> alias(std::shared_ptr<const ArraySource>(), &source);
  return is_8_bit_float(source.dtype()) ? convert_array(std::move(alias), DType::float32) : alias;
}

}  // namespace ejk::arrays
