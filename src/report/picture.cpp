// Block pictures as cells: a cell has the state of all its blocks, or is mixed; marked or partial if one is.
// One pass.
// tests: tests/report/test_text.cpp
#include "report/picture.hpp"

#include <algorithm>
#include <utility>

#include "core/checked.hpp"

namespace ejk {

namespace report {

std::string state_name(const BlockPicture& picture, CellState state) {
  if (state == CellState::mixed) return "mixed";
  const auto at = static_cast<std::size_t>(state);
  return at < 3 ? picture.state_names[at] : picture.marked_names[at - 4];
}

char letter_of(CellState state) { return "EPFMXO"[static_cast<std::size_t>(state)]; }

std::vector<CellState> states_of(const BlockPicture& picture) {
  std::vector<CellState> states{CellState::empty, CellState::partial, CellState::full, CellState::mixed};
  for (const CellState marked : {CellState::missing, CellState::extra})
    if (!state_name(picture, marked).empty()) states.push_back(marked);
  return states;
}

CellState joined(CellState a, CellState b) {
  for (const CellState strong : {CellState::missing, CellState::extra, CellState::partial})
    if (a == strong || b == strong) return strong;
  return a == b ? a : CellState::mixed;
}

CellGrid shrink(const BlockPicture& picture, std::int64_t max_rows, std::int64_t max_columns) {
  CellGrid grid;
  if (picture.rows() <= 0 || picture.columns() <= 0) return grid;
  grid.rows_per_cell = core::ceil_div(picture.rows(), std::max<std::int64_t>(max_rows, 1));
  grid.columns_per_cell = core::ceil_div(picture.columns(), std::max<std::int64_t>(max_columns, 1));
  grid.rows = core::ceil_div(picture.rows(), grid.rows_per_cell);
  grid.columns = core::ceil_div(picture.columns(), grid.columns_per_cell);

  // A cell's states as a set of bits; one bit alone is a state of its own.
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(grid.rows * grid.columns), 0);
  for (std::int64_t r = 0; r < picture.rows(); ++r) {
    std::uint8_t* row = seen.data() + r / grid.rows_per_cell * grid.columns;
    const IndexRange stored = picture.states->run(r);
    const std::uint8_t* state = picture.states->states(r).data();
    for (std::int64_t c = 0; c < grid.columns; ++c) {
      const std::int64_t begin = c * grid.columns_per_cell,
                         end = std::min(begin + grid.columns_per_cell, picture.columns());
      if (begin < stored.begin || end > stored.end) row[c] |= 1u;
      for (std::int64_t k = std::max(begin, stored.begin); k < std::min(end, stored.end); ++k)
        row[c] = static_cast<std::uint8_t>(row[c] | (1u << *state++));
    }
  }
  for (const std::uint8_t bits : seen)
    grid.cells.push_back((bits & 8) != 0    ? CellState::missing
                         : (bits & 16) != 0 ? CellState::extra
                         : (bits & 2) != 0  ? CellState::partial
                         : bits == 1        ? CellState::empty
                         : bits == 4        ? CellState::full
                                            : CellState::mixed);
  return grid;
}

}  // namespace report

BlockStates::BlockStates(std::int64_t columns, const std::vector<IndexRange>& runs) : columns_(columns) {
  std::int64_t end = 0;
  for (const IndexRange& run : runs) rows_.push_back({run.begin, end += run.end - run.begin});
  stored_.resize(static_cast<std::size_t>(end));
}

BlockStates::BlockStates(std::int64_t columns, std::vector<std::uint8_t> states)
    : columns_(columns), stored_(std::move(states)) {
  for (std::int64_t end = columns; columns > 0 && end <= std::ssize(stored_); end += columns)
    rows_.push_back({0, end});
}

}  // namespace ejk
