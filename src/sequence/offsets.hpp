// cu_seqlens, checked and as 64-bit integers: what the rest of the room works on.
#pragma once

#include <cstdint>
#include <vector>

#include "ejk/array.hpp"

namespace ejk::sequence {

/// All elements of a 1-D integer array. Throws Error{input}: another rank or dtype, an element beyond 63
/// bits. `what` is what they are ("cu_seqlens", "lengths").
std::vector<std::int64_t> read_integers(const ArraySource& source, const char* what);

/// read_integers, and that they are cu_seqlens.
std::vector<std::int64_t> read_offsets(const ArraySource& cu_seqlens);

/// The values as an array (values.size(),) of any integer or float dtype. Throws Error{input} that names the
/// first index whose value it cannot hold exactly.
Array to_array(const std::vector<std::int64_t>& values, DType dtype, const char* what);

}  // namespace ejk::sequence
