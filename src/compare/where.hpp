// Location of differences: along axes, in groups and sequences, in tiles.
// tests: tests/compare/test_explain.cpp
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/difference_pass.hpp"
#include "compare/hypothesis.hpp"
#include "ejk/program/explain.hpp"

namespace ejk::verify {

inline constexpr std::int64_t kPictureCells = 64;

/// Names of axes, and offsets of groups and sequences. Throws as explain_difference does.
Naming naming_of(const Shape& shape, const ExplainOptions& options);

/// Two axes of tiles by name or number; none for empty `words`. Throws Error{usage}.
using TileAxes = std::optional<std::array<std::size_t, 2>>;
TileAxes tile_axes_of(const Naming& naming, const std::vector<std::string>& words);

/// Tiles of these axes; by default of the last two if the size is given, else of the two longest.
TileGrid grid_of(const Shape& shape, const Shape& tile, const TileAxes& axes = std::nullopt);

TileDifferences tiles_of(const Shape& shape, const PositionCounts& counts);

/// Whether tiles differ: a picture of equal ones has no information.
bool has_contrast(const BlockStates& states);
/// None without contrast. `axes`: of the array; `state_names`: of states 0, 1 and 2.
std::optional<BlockPicture> picture_of(const TileDifferences& tiles, const std::vector<AxisDifferences>& axes,
                                       std::array<std::string, 3> state_names);

/// Counts by axis, and by group and sequence. `zeros`: of elements that are 0; null: not counted.
std::vector<AxisDifferences> axes_of(const Naming& naming, const PositionCounts& counted,
                                     const PositionCounts* zeros = nullptr);
std::vector<RunDifferences> runs_of(const Naming& naming, const PositionCounts& counted);

/// `whole`, `zero`: labels of columns, the latter omitted if empty; `key`, `counted`: keys of the table and
/// count.
Table table_of(const std::vector<AxisDifferences>& axes, std::string title, std::string whole,
               const std::string& zero = "");
Table table_of(const std::vector<RunDifferences>& runs, std::string key, std::string title,
               const std::string& counted, std::string label);

}  // namespace ejk::verify
