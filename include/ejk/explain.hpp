// Where two arrays differ and why: for the author of a kernel whose result is wrong.
//
// Where: how many differences each index of each axis has, groups or sequences too, and tiles. Why: hypotheses,
// tried in this order and said only when they account for the differences of some part of the array. With `a` the
// actual and `e` the expected array, in that part:
//   factor      a = c · e with one c, or with one for each line of the last axis
//   offset      a = e + c
//   exchanged   indices of an axis hold what belongs to others: pairs exchanged, one repeated, permuted
//   shifted     an axis moved by a few places, or
//   reversed    its other way round
//   transposed  the elements of `e` with two axes exchanged (or all reversed), in their order
//   unwritten   boxes that hold one value, 0 or NaN or another that a kernel never overwrote
//   rounding    a = e rounded to a narrower float type
// A hypothesis is found on a sample of the differences, then tested on all elements: it must account for 95 % of
// the differences in its part, and contradict fewer than 5 % of the elements there that are right. What it explains
// is set aside, and the rest is looked at again, so that several may hold at once. Where nothing holds nothing is
// said. Numbers are compared as float64 with the tolerance of the comparison.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/compare.hpp"
#include "ejk/explanation.hpp"
#include "ejk/integer_array.hpp"
#include "ejk/report.hpp"

namespace ejk {

struct ExplainOptions {
  Tolerance tolerance;
  /// Names of the axes; empty: "axis 0" and so on.
  std::vector<std::string> axes;
  /// Group sizes (G,): the rows of the axis whose length is their sum (or of the first axis that is longer), or
  /// the axis that has one index a group.
  IntegerArray group_sizes;
  /// cu_seqlens (B + 1,): the tokens of the axis whose length is its last element.
  IntegerArray cu_seqlens;
  /// Rows and columns of a tile of the last two axes; empty: tiles of a size that makes a picture.
  Shape tile;
  /// Two axes of tiles, by name or number; empty: the last two, or the two longest.
  std::vector<std::string> tile_axes = {};
};

/// How the differences lie along one axis.
struct AxisDifferences {
  std::string name;
  std::int64_t length = 0;
  std::int64_t indices = 0;        // that hold differences
  std::vector<IndexRange> ranges;  // of those
  std::vector<IndexRange> whole;   // in which every element differs
  std::vector<IndexRange> zero;    // in which every element that differs is 0 in the actual array
};

/// A group of rows or a sequence of tokens that holds differences.
struct RunDifferences {
  std::string name;  // "group", "sequence"
  std::int64_t index = 0;
  std::int64_t begin = 0, end = 0;  // indices of the axis
  std::int64_t elements = 0, differing = 0;
};

/// Tiles of two axes; the other axes are taken together.
struct TileDifferences {
  std::int64_t row_axis = 0, column_axis = 0;
  std::int64_t tile_rows = 0, tile_columns = 0;
  std::int64_t rows = 0, columns = 0;         // of the grid
  std::shared_ptr<const BlockStates> states;  // (rows, columns): 0 none, 1 some, 2 all elements differ
};

/// Axes of `actual` in another order, which gives it the shape of `expected`.
struct PermutedAxes {
  std::vector<std::int64_t> axes;  // as of numpy.transpose
  Comparison comparison;           // then
};

struct Explained {
  Comparison comparison;
  /// Of different shapes: the order of axes in which most elements agree, if there is one and `actual` is in
  /// memory or mapped.
  std::optional<PermutedAxes> permuted = {};
  // The rest is empty where the arrays are close or of different shapes.
  std::vector<AxisDifferences> axes;
  std::vector<RunDifferences> runs;
  std::optional<TileDifferences> tiles;
  std::vector<Explanation> explanations;
  /// Of the differences, the share that all of them together account for.
  double share_explained = 0;
  /// Hypotheses that were not tried, and why, in words; empty: all were.
  std::string not_tried;
};

/// compare_arrays, and what accounts for the differences: some more passes over both. Arrays that are not in
/// memory or mapped are read once for each pass; exchanges and transpositions are not tried with them. The
/// result is the same for any number of threads. Throws Error{usage} for names or tiles that do not fit the
/// shape, Error{input} for group sizes and cu_seqlens that fit no axis.
Explained explain_difference(const ArraySource& actual, const ArraySource& expected,
                             const ExplainOptions& options = {},
                             const std::function<void(std::int64_t done, std::int64_t all)>& progress = {});

/// Bytes that this takes beside the sources' own, at most.
std::int64_t explain_bytes(const ArraySource& actual, const ArraySource& expected);

/// The comparison, then where and why.
Report describe(const Explained& explained);

}  // namespace ejk
