// Checked reads of 1-D integer arrays and of cu_seqlens, as 64-bit integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ejk/array.hpp"

namespace ejk::core {

/// The elements of a box of an integer array in C order; `raw` is a buffer. Throws Error{input} with the
/// index of an element that exceeds 63 bits.
void read_integer_box(const ArraySource& source, const Shape& start, const Shape& count,
                      std::vector<std::byte>& raw, std::int64_t* out);

/// All elements of a 1-D integer array. Throws Error{input}: another rank or dtype, an element that exceeds
/// 63 bits. `what` names them ("cu_seqlens", "segment ids").
std::vector<std::int64_t> read_integers(const ArraySource& source, const char* what);

/// read_integers, with a check that they are cu_seqlens: they begin with 0 and never decrease.
std::vector<std::int64_t> read_offsets(const ArraySource& cu_seqlens);

/// Sequences that are followed by padding.
struct PaddedSequences {
  std::vector<std::int64_t> begins;   // of each, and the end of the last one's padding
  std::vector<std::int64_t> lengths;  // without padding
};
/// Whether offsets with padding may begin after 0: tokens before the first sequence belong to none.
enum class FirstOffset { zero, any };
/// From cu_seqlens without and with the padding. Throws Error{input}: the errors of read_offsets, different
/// numbers of sequences, a sequence that is longer than with its padding.
PaddedSequences read_padded_sequences(const ArraySource& cu_seqlens, const ArraySource& padded,
                                      FirstOffset first);

/// The last element: the number of tokens of cu_seqlens.
std::int64_t read_last_offset(const ArraySource& cu_seqlens);

/// The values as an array (values.size(),) of any integer or float dtype. Throws Error{input} with the first
/// index whose value the dtype cannot represent exactly.
Array to_array(const std::vector<std::int64_t>& values, DType dtype, const char* what);

}  // namespace ejk::core
