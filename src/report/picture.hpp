// A grid of block states, reduced to fewer cells.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ejk/report.hpp"

namespace ejk::report {

/// What a cell's blocks have in common.
enum class CellState : std::uint8_t { empty, partial, full, mixed, missing, extra };
inline constexpr std::size_t kCellStates = 6;

/// Characters of a name that a picture shows.
inline constexpr std::size_t kLongestName = 60;

/// "empty", or what the picture calls it.
std::string state_name(const BlockPicture& picture, CellState state);
/// E, P, F, M, X, O.
char letter_of(CellState state);
/// Those that its cells may be in.
std::vector<CellState> states_of(const BlockPicture& picture);
/// What a cell of both kinds is.
CellState joined(CellState a, CellState b);
/// The state of a block, as a picture's `states` say it.
inline CellState state_of(std::uint8_t block) {
  return static_cast<CellState>(block < 3 ? block : block + 1);
}

/// The picture with `rows_per_cell` × `columns_per_cell` blocks a cell, fewer in the last row and column.
struct CellGrid {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t rows_per_cell = 1;
  std::int64_t columns_per_cell = 1;
  std::vector<CellState> cells;  // rows × columns

  CellState at(std::int64_t row, std::int64_t column) const {
    return cells[static_cast<std::size_t>(row * columns + column)];
  }
};

/// The finest grid of at most `max_rows` × `max_columns` cells, each in the state that BlockPicture says.
CellGrid shrink(const BlockPicture& picture, std::int64_t max_rows, std::int64_t max_columns);

}  // namespace ejk::report
