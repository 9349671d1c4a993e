// One pass over both sides of a comparison: which elements differ, which of them hypotheses account for, and how the
// rest lies along the axes. Cost: reading both, some operations an element; where nothing differs and no hypothesis is
// tested that is the comparison's one look.
// tests: tests/verify/test_explain.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "verify/element_comparer.hpp"
#include "verify/hypothesis.hpp"

namespace ejk::verify {

/// How many elements each index of an axis has of something. Long axes are counted in bins of several indices.
struct IndexCounts {
  std::int64_t length = 0, bin = 1;
  std::vector<std::int64_t> counts;

  explicit IndexCounts(std::int64_t axis_length);
  /// How many counts an axis of this length has.
  static std::int64_t bins_of(std::int64_t axis_length);
  void add(std::int64_t index, std::int64_t n) { counts[static_cast<std::size_t>(index / bin)] += n; }
  void join(const IndexCounts& other);
  /// Indices whose bins fulfil `wanted(count, indices of the bin)`.
  std::vector<IndexRange> ranges(const std::function<bool(std::int64_t, std::int64_t)>& wanted) const;
};

struct TileGrid {
  std::size_t row_axis = 0, column_axis = 0;
  std::int64_t tile_rows = 1, tile_columns = 1, rows = 0, columns = 0;
};

/// How many flagged elements each index of each axis has, and each tile of a grid.
struct PlaceCounts {
  std::vector<IndexCounts> axes;
  TileGrid grid;
  std::vector<std::int64_t> tiles;  // (rows, columns)

  PlaceCounts() = default;
  explicit PlaceCounts(const Shape& shape, const TileGrid& of = {});
  /// A line of n elements along the last axis, `sum` of them flagged with a 1.
  void add_line(const Shape& at, std::int64_t n, const std::uint8_t* flags, std::int64_t sum);
  void join(const PlaceCounts& other);
};

/// What a hypothesis came to.
struct Verdict {
  std::int64_t explained = 0;     // differences that it accounts for
  std::int64_t unexplained = 0;   // differences in its scope that it does not
  std::int64_t contradicted = 0;  // elements in its scope that do not differ, and should
  /// Of the first, and of the other two; of the last hypothesis alone.
  PlaceCounts explained_at, failed_at;

  void join(const Verdict& other);
};

struct PassResult {
  std::int64_t differing = 0;     // before any hypothesis
  std::int64_t left = 0;          // that none accounts for
  PlaceCounts left_at, zeros_at;  // of those left; of them those that are 0 in the actual array
  std::vector<Verdict> verdicts;
  std::vector<Sample> samples;  // of those left, spread over the array
  std::vector<bool> pieces;     // that hold some of those left
};

struct PassPlan {
  const Side& actual;
  const Side& expected;
  ElementComparer comparer;
  std::vector<HypothesisPtr> hypotheses;  // the first that accounts for an element has it
  TileGrid grid;                          // without rows: no tiles
  std::vector<bool> pieces;               // the only ones to be looked at; empty: all
  /// Which elements differ, in C order, where that is known; null: as the evaluate says.
  const std::uint8_t* differing = nullptr;
  /// Gets a 1 for each element that is left and a 0 for the others, in C order; null: not wanted.
  std::uint8_t* left = nullptr;
};

PassResult run_pass(const PassPlan& plan, const std::function<void(std::int64_t)>& progress);

/// The pieces that hold elements of a scope.
std::vector<bool> pieces_in(const Scope& scope, const Shape& shape);

/// Bytes that a pass takes, and what it gives, at most.
std::int64_t pass_bytes(const Side& actual, const Side& expected);

}  // namespace ejk::verify
