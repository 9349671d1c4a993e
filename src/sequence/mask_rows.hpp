// A mask (batch, seq) as rows of bits, in pieces: memory does not grow with it.
#pragma once

#include <cstdint>
#include <functional>

#include "ejk/sequence.hpp"

namespace ejk::sequence {

/// Throws Error{input} unless the mask is (batch, seq), bool or integer.
void check_row_mask(const ArraySource& mask);

/// f(row, column, bits, width): the elements [column, column + width) of a row are the first bits of `bits`,
/// set where non-zero; what follows them in the last word is 0. Pieces of one row come in order and one at a
/// time; rows come on several threads in any order.
using RowBits =
    std::function<void(std::int64_t row, std::int64_t column, const std::uint64_t* bits, std::int64_t width)>;
void scan_rows(const ArraySource& mask, MaskIntegers integers, const RowBits& f);

}  // namespace ejk::sequence
