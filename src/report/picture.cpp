// A cell stands for a rectangle of blocks: in the state that all of them have, as mixed, or as marked where one
// of them is. One pass over the blocks.
// tests: tests/report/test_text.cpp
#include "report/picture.hpp"

#include <algorithm>

#include "core/checked.hpp"

namespace ejk::report {

std::string state_name(const BlockPicture& picture, CellState state) {
  if (state == CellState::mixed) return "mixed";
  return state == CellState::marked ? picture.marked_name
                                    : picture.state_names[static_cast<std::size_t>(state)];
}

char letter_of(CellState state) { return "EPFMX"[static_cast<std::size_t>(state)]; }

std::vector<CellState> states_of(const BlockPicture& picture) {
  std::vector<CellState> states{CellState::empty, CellState::partial, CellState::full, CellState::mixed};
  if (!picture.marked_name.empty()) states.push_back(CellState::marked);
  return states;
}

CellState joined(CellState a, CellState b) {
  if (a == CellState::marked || b == CellState::marked) return CellState::marked;
  return a == b ? a : CellState::mixed;
}

CellGrid shrink(const BlockPicture& picture, std::int64_t max_rows, std::int64_t max_columns) {
  CellGrid grid;
  if (picture.rows <= 0 || picture.columns <= 0 || !picture.states) return grid;
  grid.rows_per_cell = core::ceil_div(picture.rows, std::max<std::int64_t>(max_rows, 1));
  grid.columns_per_cell = core::ceil_div(picture.columns, std::max<std::int64_t>(max_columns, 1));
  grid.rows = core::ceil_div(picture.rows, grid.rows_per_cell);
  grid.columns = core::ceil_div(picture.columns, grid.columns_per_cell);

  // A cell's states as a set of bits; one bit alone is a state of its own.
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(grid.rows * grid.columns), 0);
  const std::uint8_t* state = picture.states->data();
  for (std::int64_t r = 0; r < picture.rows; ++r) {
    std::uint8_t* row = seen.data() + r / grid.rows_per_cell * grid.columns;
    for (std::int64_t c = 0; c < grid.columns; ++c) {
      const std::int64_t end = std::min((c + 1) * grid.columns_per_cell, picture.columns);
      for (std::int64_t k = c * grid.columns_per_cell; k < end; ++k)
        row[c] = static_cast<std::uint8_t>(row[c] | (1u << (*state++ & 3u)));
    }
  }
  for (const std::uint8_t bits : seen)
    grid.cells.push_back((bits & 8) != 0 ? CellState::marked
                         : bits == 1     ? CellState::empty
                         : bits == 2     ? CellState::partial
                         : bits == 4     ? CellState::full
                                         : CellState::mixed);
  return grid;
}

}  // namespace ejk::report
