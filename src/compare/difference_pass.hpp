// One parallel pass over both arrays: counts, samples, and the result of each hypothesis. Cost: reading both.
// tests: tests/compare/test_explain.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "compare/element_comparer.hpp"
#include "compare/hypothesis.hpp"
#include "core/progress.hpp"

namespace ejk::verify {

/// Counts by index of an axis; of a long axis by bins of several indices.
struct IndexCounts {
  std::int64_t length = 0, bin = 1;
  std::vector<std::int64_t> counts;

  explicit IndexCounts(std::int64_t axis_length);
  static std::int64_t bins_of(std::int64_t axis_length);
  void add(std::int64_t index, std::int64_t n) { counts[static_cast<std::size_t>(index / bin)] += n; }
  void join(const IndexCounts& other);
  std::vector<IndexRange> ranges(const std::function<bool(std::int64_t, std::int64_t)>& wanted) const;
};

struct TileGrid {
  std::size_t row_axis = 0, column_axis = 0;
  std::int64_t tile_rows = 1, tile_columns = 1, rows = 0, columns = 0;
};

/// How many flagged elements each index of each axis has, and each tile of a grid.
struct PositionCounts {
  std::vector<IndexCounts> axes;
  TileGrid grid;
  std::vector<std::int64_t> tiles;  // (rows, columns)

  PositionCounts() = default;
  explicit PositionCounts(const Shape& shape, const TileGrid& tile_grid = {});
  void add_line(const Shape& at, std::int64_t n, const std::uint8_t* flags, std::int64_t sum);
  void join(const PositionCounts& other);
};

struct Verdict {
  std::int64_t explained = 0;     // differences predicted
  std::int64_t unexplained = 0;   // differences in scope not predicted
  std::int64_t contradicted = 0;  // elements in scope that are equal against the prediction
  /// Of the first, and of the other two; for the last hypothesis only.
  PositionCounts explained_at, failed_at;

  void join(const Verdict& other);
};

struct PassResult {
  std::int64_t differing = 0;        // before any hypothesis
  std::int64_t left = 0;             // that none accounts for
  PositionCounts left_at, zeros_at;  // of those left; of them those that are 0 in the actual array
  std::vector<Verdict> verdicts;
  std::vector<Sample> samples;  // of those left, from all parts of the array
  std::vector<bool> chunks;     // with some of those left
};

struct PassPlan {
  const Side& actual;
  const Side& expected;
  ElementComparer comparer;
  std::vector<HypothesisPtr> hypotheses;  // an element is explained by the first that predicts it
  TileGrid grid;                          // without rows: no tiles
  std::vector<bool> chunks;               // to be read; empty: all
  /// Which elements differ, in C order, where that is known; null: as the evaluate says.
  const std::uint8_t* differing = nullptr;
  /// Output: 1 for each unexplained element, else 0, in C order; may be null.
  std::uint8_t* left = nullptr;
};

PassResult run_pass(const PassPlan& plan, const core::Progress::Report& report);

std::vector<bool> chunks_in(const Scope& scope, const Shape& shape);

std::int64_t pass_bytes(const Side& actual, const Side& expected);

}  // namespace ejk::verify
