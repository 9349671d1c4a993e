// 1-D integer arrays as 64-bit integers, and cu_seqlens, checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ejk/array.hpp"

namespace ejk::core {

/// The elements of a box of an integer array in C order, which are read to `raw` first. Throws Error{input} with the
/// index of an element beyond 63 bits.
void read_integer_box(const ArraySource& source, const Shape& start, const Shape& count,
                      std::vector<std::byte>& raw, std::int64_t* out);

/// All elements of a 1-D integer array. Throws Error{input}: another rank or dtype, an element beyond 63
/// bits. `what` is what they are ("cu_seqlens", "segment ids").
std::vector<std::int64_t> read_integers(const ArraySource& source, const char* what);

/// read_integers, and that they are cu_seqlens: begin with 0 and never decrease.
std::vector<std::int64_t> read_offsets(const ArraySource& cu_seqlens);

/// Sequences with padding behind them.
struct PaddedSequences {
  std::vector<std::int64_t> begins;   // of each, and where the padding of the last one ends
  std::vector<std::int64_t> lengths;  // without padding
};
/// Of cu_seqlens without and with the padding. Throws Error{input}: what read_offsets does, other numbers of
/// sequences, one that is longer than with its padding.
PaddedSequences read_padded_sequences(const ArraySource& cu_seqlens, const ArraySource& padded);

/// The last element alone, which is the number of tokens if they are cu_seqlens.
std::int64_t read_last_offset(const ArraySource& cu_seqlens);

/// The values as an array (values.size(),) of any integer or float dtype. Throws Error{input} that names the
/// first index whose value it cannot hold exactly.
Array to_array(const std::vector<std::int64_t>& values, DType dtype, const char* what);

}  // namespace ejk::core
