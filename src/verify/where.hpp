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

/// The axes of tiles by their names or numbers, two of them; nothing where `words` is empty. Throws Error{usage}.
using TileAxes = std::optional<std::array<std::size_t, 2>>;
TileAxes tile_axes_of(const Naming& naming, const std::vector<std::string>& words);

/// Tiles of these axes; else of the last two if their size is given, else of the two longest.
TileGrid grid_of(const Shape& shape, const Shape& tile, const TileAxes& axes = std::nullopt);

/// The picture of `differing`, how many elements stand out in each tile.
TileDifferences tiles_of(const TileGrid& grid, const Shape& shape,
                         const std::vector<std::int64_t>& differing);

/// Of what a pass counted by index.
std::vector<AxisDifferences> axes_of(const Naming& naming, const PassResult& pass);
std::vector<RunDifferences> runs_of(const Naming& naming, const PassResult& pass);

}  // namespace ejk::verify
