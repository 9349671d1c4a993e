// Conversion of contiguous elements to another type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "ejk/array_math.hpp"
#include "ejk/dtype.hpp"

namespace ejk::arrays {

/// Converts n contiguous elements, by the rules of convert_array. Returns the index of the first
/// that the new type cannot hold, if there is one.
std::optional<std::int64_t> convert_elements(DType from_type, const std::byte* from, DType to_type,
                                             std::byte* to, std::int64_t n,
                                             const OverflowSettings& overflows = {});

/// The array, which must outlive the result.
inline std::shared_ptr<const ArraySource> borrowed(const ArraySource& source) {
  return {std::shared_ptr<const ArraySource>(), &source};
}

/// float32 for 8-bit floats, else the type itself.
inline DType wide_type(DType dtype) { return is_8_bit_float(dtype) ? DType::float32 : dtype; }

/// The array in its wide type; it must outlive the result.
inline std::shared_ptr<const ArraySource> with_wide_floats(const ArraySource& source) {
  return convert_array(borrowed(source), wide_type(source.dtype()));
}

}  // namespace ejk::arrays
