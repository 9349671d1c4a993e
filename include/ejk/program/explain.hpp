// Explanation of why two arrays differ, and where: for debugging a kernel.
//
// Where: by index of each axis, group or sequence, and tile. Why: hypotheses, tried in this order; with `a`
// the actual and `e` the expected array, in some region:
//   factor      a = c · e with one c, or one for each index of an axis, group or sequence; of 3 to 7 differences
//               to a unit in the last place
//   offset      a = e + c, likewise
//   exchanged   indices of an axis hold the elements of others: swapped in pairs, repeated or permuted
//   shifted     elements shifted by a few positions along an axis
//   transposed  the elements of `e` with two axes swapped, or all in reverse order
//   unwritten   boxes (ranges of indices) with one value: 0, NaN, or one that the kernel left unwritten
//   rounding    a = e rounded to a narrower float type
// and for quantised arrays, from decoded values alone:
//   nibbles           neighbours along the last axis are swapped, as are the two elements of a byte, or a byte has
//                     elements j and j + 16 of a block of 32
//   interleaved-rows  two halves of an axis are interleaved in one array and consecutive in the other
//   scale-step        blocks of the last axis are off by a factor of 2, as with another scale rule
//   scale-layout      scales of blocks of 16 or 32 were read in another layout
//   scales            blocks of 16, 32 or 128 have each a factor, as with the scales of other blocks
//   misused-scales    scales of blocks or arrays were used as their reciprocals, or left out
//   subnormal-scales  e4m3 scales below 2^-6 were read as if they were normal numbers
//   cut-off           elements above the largest code of a block of 32, whose scale is a step too small
//   e8m0-int8         E8M0 scales were read as signed exponents, or vice versa
//   fnuz              8-bit floats were read with the other exponent bias (fnuz, OCP)
// A hypothesis is fitted to a sample and tested on all elements: it must explain 95 % of the differences in
// its region, and contradict fewer than 5 % of the equal elements there. Then the search continues with the
// rest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/compare.hpp"
#include "ejk/report.hpp"

namespace ejk {

struct ExplainOptions {
  Tolerance tolerance;
  /// Names of the axes; empty: "axis 0" and so on.
  std::vector<std::string> axes;
  /// (G,): of the rows of the axis whose length is their sum (or of the first longer one), or one index a
  /// group.
  IntegerArray group_sizes;
  /// cu_seqlens (B + 1,): the tokens of the axis whose length is its last element.
  IntegerArray cu_seqlens;
  /// Rows and columns of a tile of the last two axes; empty: tiles of a size that makes a picture.
  Shape tile;
  /// Two axes of tiles, by name or number; empty: the last two, or the two longest.
  std::vector<std::string> tile_axes = {};
};

struct AxisDifferences {
  std::string name;
  std::int64_t length = 0;
  std::int64_t indices = 0;        // with differences
  std::vector<IndexRange> ranges;  // of those indices
  std::vector<IndexRange> whole;   // where every element differs
  std::vector<IndexRange> zero;    // where every element that differs is 0 in the actual array
};

struct RunDifferences {
  std::string name;  // "group", "sequence"
  std::int64_t index = 0;
  std::int64_t begin = 0, end = 0;  // indices of the axis
  std::int64_t elements = 0, differing = 0;
};

/// Tiles of two axes, summed over the other axes.
struct TileDifferences {
  std::int64_t row_axis = 0, column_axis = 0;
  std::int64_t tile_rows = 0, tile_columns = 0;
  std::int64_t rows = 0, columns = 0;         // of the grid
  std::shared_ptr<const BlockStates> states;  // (rows, columns): 0 none, 1 some, 2 all elements differ
};

/// Rows past the last group, where some differ. A kernel may leave them uninitialised.
struct NoGroupDifferences {
  IndexRange rows;
  Comparison comparison;  // of these rows
};

/// An order of the axes of `actual` in which it has the shape of `expected`.
struct PermutedAxes {
  std::vector<std::int64_t> axes;  // as in numpy.transpose
  Comparison comparison;           // in that order
};

/// Two or three passes. Throws Error{input} for a reference of another shape, or not finite where `expected` is.
NoWorseThan no_worse_than(const Comparison& actual, const ArraySource& expected, const ArraySource& reference,
                          double factor);

struct Explained {
  Comparison comparison;
  /// It determines whether the arrays are close, where there is one.
  std::optional<NoWorseThan> no_worse_than = {};
  /// For different shapes: the order of axes in which most elements agree, if `actual` is in memory or
  /// mapped.
  std::optional<PermutedAxes> permuted = {};
  // The rest is empty for arrays that are close or of different shapes.
  std::vector<AxisDifferences> axes;
  std::vector<RunDifferences> runs;
  std::optional<NoGroupDifferences> no_group = {};
  std::optional<TileDifferences> tiles;
  std::vector<Explanation> explanations;
  double share_explained = 0;
  /// Hypotheses that were not tried, and why; empty: all were.
  std::string not_tried;
};

/// compare_arrays, then further passes. Arrays neither in memory nor mapped are read once a pass, without a
/// search for exchanges and transpositions. Throws Error{usage} for names or tiles that do not match the
/// shape, Error{input} for group sizes and cu_seqlens that match no axis.
Explained explain_difference(const ArraySource& actual, const ArraySource& expected,
                             const ExplainOptions& options = {},
                             const std::function<void(std::int64_t done, std::int64_t all)>& progress = {});

/// Memory of explain_difference beside the sources' own, at most.
std::int64_t explain_bytes(const ArraySource& actual, const ArraySource& expected);

Report describe(const Explained& explained);

}  // namespace ejk
