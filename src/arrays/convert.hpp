// Conversion of contiguous elements to another type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ejk/dtype.hpp"

namespace ejk::arrays {

/// Converts n contiguous elements, by the rules of convert_array. Returns the index of the first
/// that the new type cannot hold, if there is one.
std::optional<std::int64_t> convert_elements(DType from_type, const std::byte* from, DType to_type,
                                             std::byte* to, std::int64_t n);

}  // namespace ejk::arrays
