// How elements that stand out lie in an array: along its axes, in groups and sequences, in tiles.
// tests: tests/verify/test_explain.cpp
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ejk/explain.hpp"
#include "verify/difference_pass.hpp"
#include "verify/hypothesis.hpp"

namespace ejk::verify {

/// Tiles along an axis of a picture, at most, where their size is not given.
inline constexpr std::int64_t kPictureCells = 64;

/// What the axes of a shape are called, and where its groups and sequences begin. Throws as
/// explain_difference does.
Naming naming_of(const Shape& shape, const ExplainOptions& options);

/// The axes of tiles by their names or numbers, two of them; nothing where `words` is empty. Throws
/// Error{usage}.
using TileAxes = std::optional<std::array<std::size_t, 2>>;
TileAxes tile_axes_of(const Naming& naming, const std::vector<std::string>& words);

/// Tiles of these axes; else of the last two if their size is given, else of the two longest.
TileGrid grid_of(const Shape& shape, const Shape& tile, const TileAxes& axes = std::nullopt);

/// Of counts with a grid.
TileDifferences tiles_of(const Shape& shape, const PlaceCounts& counts);

/// Whether tiles are not all alike: otherwise a picture tells nothing.
bool has_contrast(const BlockStates& states);
/// Of tiles with contrast; nothing of others. `axes` are those of the array, `state_names` of states 0, 1 and
/// 2.
std::optional<BlockPicture> picture_of(const TileDifferences& tiles, const std::vector<AxisDifferences>& axes,
                                       std::array<std::string, 3> state_names);

/// "0 to 3 and 7", "all"; nothing where there are none.
ReportValue ranges_value(const std::vector<IndexRange>& ranges, std::int64_t length);

/// Counts by axis, and by group and sequence. `zeros`: of elements that are 0; null: not counted.
std::vector<AxisDifferences> axes_of(const Naming& naming, const PlaceCounts& counts,
                                     const PlaceCounts* zeros = nullptr);
std::vector<RunDifferences> runs_of(const Naming& naming, const PlaceCounts& counts);

}  // namespace ejk::verify
