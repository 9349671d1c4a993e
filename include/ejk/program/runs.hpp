// Determinism: results of repeated runs, how many are distinct, and which elements vary ("move").
//
// Runs are equal bit for bit: NaNs of the same bits are equal, 0 and −0 are not. The spread of an element is
// the largest less the smallest finite value, in float64; exact for integers. Moving elements follow an axis
// if they have at most three quarters of the indices expected at random, length · (1 − (1 − 1/length)ⁿ).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/array_math.hpp"
#include "ejk/compare.hpp"
#include "ejk/program/explain.hpp"
#include "ejk/report.hpp"

namespace ejk {

struct RunsOptions {
  /// Without either, close means equal; with one, every run must be within the tolerance of the first, as in
  /// compare_arrays. NaN agrees with NaN.
  std::optional<double> rtol = std::nullopt, atol = std::nullopt;
  /// As in ExplainOptions.
  std::vector<std::string> axes = {};
  IntegerArray group_sizes = {}, cu_seqlens = {};
  Shape tile = {};
  std::vector<std::string> tile_axes = {};
};

struct Spread {
  Shape index;
  double amount = 0;
  Extreme least, largest;
  std::int64_t least_run = 0, largest_run = 0;  // the first runs that have them
};

struct RunResult {
  /// Index among the distinct results, in the order of their first runs.
  std::int64_t group = 0;
  bool has_array = false;
  /// Its dtype and shape are those of the first run that has the array. The rest is set for those.
  bool has_type = false;
  std::int64_t differing = 0;                           // elements whose bits differ from that run's
  std::optional<double> max_difference = std::nullopt;  // the largest of those of finite elements
  std::int64_t beyond = 0;  // elements that are not within the tolerance of that run's
};

struct RunsComparison {
  bool equal = false;                // all of them, bit for bit
  bool close = false;                // within the tolerance, if there is one
  std::optional<double> rtol, atol;  // that tolerance
  std::int64_t distinct = 0;
  std::vector<RunResult> runs;

  // The rest is of runs of the first one's type.
  DType dtype = DType::boolean;
  Shape shape;
  std::int64_t elements = 0;
  std::int64_t moving = 0;     // elements that are not the same in all runs
  std::int64_t nonfinite = 0;  // those of them that are NaN or infinite in some run
  std::optional<Shape> first_moving, first_nonfinite;
  std::optional<Spread> max_spread;   // none where no moving element is finite in two runs
  std::vector<AxisDifferences> axes;  // along each axis, where elements move
  std::vector<RunDifferences> parts;  // groups and sequences that hold moving elements
  std::optional<TileDifferences> tiles;
  std::string follows;  // "head 3, query 64 to 127": the only part that moves; else empty
};

/// One parallel pass. A null run, or one of another type, is distinct and its elements are not compared.
/// `progress(done, all)` counts elements of a run. Memory: a chunk of each run for each thread. Throws
/// Error{usage} without a run and for a negative tolerance, and as explain_difference does for names.
RunsComparison compare_runs(std::span<const std::shared_ptr<const ArraySource>> runs,
                            const RunsOptions& options = {},
                            const std::function<void(std::int64_t done, std::int64_t all)>& progress = {});

/// Memory of compare_runs beside the sources' own, at most. Throws as compare_runs does for names.
std::int64_t runs_bytes(std::span<const std::shared_ptr<const ArraySource>> runs,
                        const RunsOptions& options = {});

struct RunsOfArray {
  std::string array;  // empty: the only one
  RunsComparison found = {};
  std::string why = {};  // why it was not compared; empty: it was
};

Report describe_runs(std::span<const RunsOfArray> arrays, std::span<const std::string> names);

}  // namespace ejk
