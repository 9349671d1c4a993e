// The data of a block picture for a page's script: compact, and exact at the scale that it states.
#pragma once

#include <cstddef>
#include <string>

#include "ejk/report.hpp"
#include "report/drawing.hpp"

namespace ejk::report {

/// One JSON object, in ASCII and without "<", for use in a script element:
///   rows, columns   cells of the map; blocks in all: blocks [rows, columns]
///   scale           blocks of a cell along each side, a power of two
///   axes            [rows, columns] of {name, block, length, label}
///   block           what a block is called; names, counts: of the states E, P, F, M, X, O, and their blocks
///   runs            rows joined by "/": a letter of a state, and how many cells have it where that is not 1;
///                   "=" is the row above once more, "=9" nine times
///   density         null or {blocks, columns, values}: shares of 0 to 2^18 - 1, three digits of base 64 each
/// It has about `most_bytes` at the most: the finest scale is taken that allows it.
std::string block_map(const BlockPicture& picture, const BlockCounts& counts, std::size_t most_bytes);

}  // namespace ejk::report
