// Results of the same work, computed several times: are they equal, how many are distinct, and which elements
// move from one run to another. For authors of kernels whose sums depend on the order of atomics, splits or
// blocks.
//
// Runs are equal where their elements are equal bit for bit, in the machine's byte order: NaNs of the same
// bits are equal, 0 and −0 are not, and a bool is its byte. The spread of an element is its largest less its
// smallest value over the runs, of those that are finite, in float64; of integers it is taken exactly first.
//
// What moves follows an axis where it has few of its indices: at most three quarters of as many as the same
// number of elements would have on average, were they anywhere (length · (1 − (1 − 1/length)ⁿ)).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/compare.hpp"
#include "ejk/explain.hpp"
#include "ejk/integer_array.hpp"
#include "ejk/report.hpp"
#include "ejk/statistics.hpp"

namespace ejk {

struct RunsOptions {
  /// Without either, runs are close where they are equal. With one, every run is to be within rtol and atol
  /// of the first, as compare_arrays says it; the other one is that of the dtype. NaN agrees with NaN.
  std::optional<double> rtol = std::nullopt, atol = std::nullopt;
  /// What axes, groups, sequences and tiles are, as in ExplainOptions.
  std::vector<std::string> axes = {};
  IntegerArray group_sizes = {}, cu_seqlens = {};
  Shape tile = {};
  std::vector<std::string> tile_axes = {};
};

/// An element, and its smallest and largest finite value over the runs.
struct Spread {
  Shape index;
  double amount = 0;
  Extreme least, largest;
  std::int64_t least_run = 0, largest_run = 0;  // the first runs that have them
};

struct RunResult {
  /// Which of the distinct results it is, in the order of their first runs.
  std::int64_t group = 0;
  bool has_array = false;
  /// It has the dtype and shape of the first run that has the array. The rest is of those.
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

  // The rest is of the runs that have the type of the first.
  DType dtype = DType::boolean;
  Shape shape;
  std::int64_t elements = 0;
  std::int64_t moving = 0;     // elements that are not the same in all runs
  std::int64_t nonfinite = 0;  // of them those that are NaN or infinite in some run
  std::optional<Shape> first_moving, first_nonfinite;
  std::optional<Spread> max_spread;   // none where no moving element is finite in two runs
  std::vector<AxisDifferences> axes;  // along each axis, where elements move
  std::vector<RunDifferences> parts;  // groups and sequences that hold moving elements
  std::optional<TileDifferences> tiles;
  std::string follows;  // "head 3, query 64 to 127": the only part that moves; else empty
};

/// One pass over all runs at once, piece by piece, on all threads where the sources allow; the result is the
/// same for any number of threads. A run of another dtype or shape is distinct from those of the first one's,
/// as is a null one, which lacks the array; their elements are not compared. `progress(done, all)` counts
/// elements of a run. Memory: a piece of each run for each thread. Throws Error{usage} without a run, for a
/// tolerance that is no number from 0 on, and as explain_difference does for names that do not fit.
RunsComparison compare_runs(std::span<const std::shared_ptr<const ArraySource>> runs,
                            const RunsOptions& options = {},
                            const std::function<void(std::int64_t done, std::int64_t all)>& progress = {});

/// Bytes that this takes beside the sources' own, at most. Throws as compare_runs does for names that do not
/// fit.
std::int64_t runs_bytes(std::span<const std::shared_ptr<const ArraySource>> runs,
                        const RunsOptions& options = {});

/// What was found of one of the arrays that every run has.
struct RunsOfArray {
  std::string array;  // empty: the only one
  RunsComparison found = {};
  std::string why = {};  // why it was not compared; empty: it was
};

/// Whether all runs are close, and a section `runs` with what was found. `names`: of the runs.
Report describe_runs(std::span<const RunsOfArray> arrays, std::span<const std::string> names);

}  // namespace ejk
