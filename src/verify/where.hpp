// How elements that stand out lie in an array: along its axes, in groups and sequences, in tiles.
// tests: tests/verify/test_explain.cpp
#pragma once

#include <cstdint>
#include <vector>

#include "ejk/explain.hpp"
#include "verify/difference_pass.hpp"
#include "verify/hypothesis.hpp"

namespace ejk::verify {

/// What the axes of a shape are called, and where its groups and sequences begin. Throws as
/// explain_difference does.
Naming naming_of(const Shape& shape, const ExplainOptions& options);

/// Tiles of the last two axes if their size is given, else of the two longest.
TileGrid grid_of(const Shape& shape, const Shape& tile);

/// The picture of `differing`, how many elements stand out in each tile.
TileDifferences tiles_of(const TileGrid& grid, const Shape& shape,
                         const std::vector<std::int64_t>& differing);

/// Of what a pass counted by index.
std::vector<AxisDifferences> axes_of(const Naming& naming, const PassResult& pass);
std::vector<RunDifferences> runs_of(const Naming& naming, const PassResult& pass);

}  // namespace ejk::verify
