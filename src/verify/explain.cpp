// Where two arrays differ, and why: one pass counts and samples the differences, verify/value_search.hpp looks for what
// accounts for them. Cost: the comparison, a pass, and one or two for each hypothesis.
// tests: tests/verify/test_explain.cpp
#include "ejk/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/splitmix64.hpp"
#include "ejk/text.hpp"
#include "ejk/threads.hpp"
#include "verify/describe.hpp"
#include "verify/difference_pass.hpp"
#include "verify/float_type.hpp"
#include "verify/hypothesis.hpp"
#include "verify/value_search.hpp"
#include "verify/where.hpp"

namespace ejk {

namespace {

using verify::Naming;
using verify::PassResult;
using verify::Side;
using verify::TileGrid;

constexpr std::int64_t kPictureCells = 64;
constexpr std::int64_t kMostTiles = std::int64_t{1} << 22;

}  // namespace

namespace verify {

namespace {

// --- names of axes and their parts

Naming::Run run_of(const IntegerArray& sizes_or_offsets, const char* name, std::vector<std::int64_t> offsets,
                   const Shape& shape) {
  const std::int64_t end = offsets.back();
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (shape[d] == end) return {d, name, std::move(offsets)};
  throw Error(Error::Kind::input,
              fmt::format("{}: its {}s end at {}, and no axis of shape {} has that length",
                          sizes_or_offsets->name(), name, end, to_string(shape)));
}

std::vector<std::int64_t> sums_of(const ArraySource& sizes) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t size : core::read_integers(sizes, "group sizes")) {
    const auto next = size < 0 ? std::nullopt : core::checked_add(offsets.back(), size);
    if (!next)
      throw Error(Error::Kind::input,
                  fmt::format("{}: size {} is {}", sizes.name(), offsets.size() - 1, size));
    offsets.push_back(*next);
  }
  return offsets;
}

}  // namespace

Naming naming_of(const Shape& shape, const ExplainOptions& options) {
  Naming naming;
  naming.shape = shape;
  naming.axes = options.axes;
  if (naming.axes.empty())
    for (std::size_t d = 0; d < shape.size(); ++d) naming.axes.push_back(fmt::format("axis {}", d));
  if (naming.axes.size() != shape.size())
    throw Error(Error::Kind::usage, fmt::format("{} names for the {} axes of shape {}", naming.axes.size(),
                                                shape.size(), to_string(shape)));
  if (options.group_sizes) {
    std::vector<std::int64_t> offsets = sums_of(*options.group_sizes);
    const auto groups = static_cast<std::int64_t>(offsets.size()) - 1;
    const auto of_groups = std::find(shape.begin(), shape.end(), groups);
    const bool has_rows = std::find(shape.begin(), shape.end(), offsets.back()) != shape.end();
    const bool is_weights = shape.size() == 3 && shape[0] == groups;  // (groups, k, n), whatever k is
    if (is_weights || (!has_rows && of_groups != shape.end())) {      // an index a group
      if (options.axes.empty()) naming.axes[static_cast<std::size_t>(of_groups - shape.begin())] = "group";
    } else if (!has_rows && !shape.empty() && shape[0] > offsets.back()) {  // rows past the last group
      naming.runs.push_back({0, "group", std::move(offsets)});
    } else {
      naming.runs.push_back(run_of(options.group_sizes, "group", std::move(offsets), shape));
    }
  }
  if (options.cu_seqlens)
    naming.runs.push_back(
        run_of(options.cu_seqlens, "sequence", core::read_offsets(*options.cu_seqlens), shape));
  return naming;
}

// --- tiles

TileAxes tile_axes_of(const Naming& naming, const std::vector<std::string>& words) {
  if (words.empty()) return std::nullopt;
  std::array<std::size_t, 2> axes{};
  for (std::size_t n = 0; n < words.size() && n < 2; ++n) {
    const auto named = std::find(naming.axes.begin(), naming.axes.end(), words[n]);
    axes[n] = static_cast<std::size_t>(named - naming.axes.begin());
    for (std::size_t d = 0; d < naming.axes.size(); ++d)
      if (named == naming.axes.end() && words[n] == fmt::format("{}", d)) axes[n] = d;
    if (axes[n] >= naming.axes.size())
      throw Error(Error::Kind::usage, fmt::format("there is no axis {}: they are {}", printable(words[n]),
                                                  fmt::join(naming.axes, ", ")));
  }
  if (words.size() != 2 || axes[0] == axes[1])
    throw Error(Error::Kind::usage, "tiles have two axes, each another one");
  return axes;
}

TileGrid grid_of(const Shape& shape, const Shape& tile, const TileAxes& axes) {
  TileGrid grid;
  if (!tile.empty() && (tile.size() != 2 || tile[0] < 1 || tile[1] < 1))
    throw Error(Error::Kind::usage,
                fmt::format("a tile has rows and columns, not the shape {}", to_string(tile)));
  if (element_count(shape) == 0) return grid;
  if (shape.size() < 2) {
    if (!tile.empty())
      throw Error(Error::Kind::usage, fmt::format("arrays of shape {} have no tiles", to_string(shape)));
    return grid;
  }
  if (axes) {
    grid.row_axis = (*axes)[0], grid.column_axis = (*axes)[1];
  } else if (!tile.empty()) {
    grid.row_axis = shape.size() - 2, grid.column_axis = shape.size() - 1;
  } else {
    std::vector<std::size_t> longest(shape.size());
    std::iota(longest.begin(), longest.end(), 0);
    std::stable_sort(longest.begin(), longest.end(),
                     [&](std::size_t x, std::size_t y) { return shape[x] > shape[y]; });
    grid.row_axis = std::min(longest[0], longest[1]), grid.column_axis = std::max(longest[0], longest[1]);
  }
  if (!tile.empty()) {
    grid.tile_rows = tile[0], grid.tile_columns = tile[1];
  } else {
    grid.tile_rows = core::ceil_div(shape[grid.row_axis], kPictureCells);
    grid.tile_columns = core::ceil_div(shape[grid.column_axis], kPictureCells);
  }
  grid.rows = core::ceil_div(shape[grid.row_axis], grid.tile_rows);
  grid.columns = core::ceil_div(shape[grid.column_axis], grid.tile_columns);
  if (grid.rows > kMostTiles / grid.columns)
    throw Error(Error::Kind::usage, fmt::format("tiles of {} x {} are {} x {}, more than can be counted",
                                                grid.tile_rows, grid.tile_columns, grid.rows, grid.columns));
  return grid;
}

TileDifferences tiles_of(const TileGrid& grid, const Shape& shape,
                         const std::vector<std::int64_t>& differing) {
  TileDifferences tiles{static_cast<std::int64_t>(grid.row_axis),
                        static_cast<std::int64_t>(grid.column_axis),
                        grid.tile_rows,
                        grid.tile_columns,
                        grid.rows,
                        grid.columns,
                        nullptr};
  const std::int64_t others = element_count(shape) / (shape[grid.row_axis] * shape[grid.column_axis]);
  const auto length = [](std::int64_t index, std::int64_t size, std::int64_t all) {
    return std::min(size, all - index * size);
  };
  std::vector<std::uint8_t> states;
  for (std::int64_t r = 0; r < grid.rows; ++r)
    for (std::int64_t c = 0; c < grid.columns; ++c) {
      const std::int64_t all = length(r, grid.tile_rows, shape[grid.row_axis]) *
                               length(c, grid.tile_columns, shape[grid.column_axis]) * others;
      const std::int64_t n = differing[static_cast<std::size_t>(r * grid.columns + c)];
      states.push_back(n == 0 ? 0 : n == all ? 2 : 1);
    }
  tiles.states = std::make_shared<const BlockStates>(grid.columns, std::move(states));
  return tiles;
}

// --- where

std::vector<AxisDifferences> axes_of(const Naming& naming, const PassResult& pass) {
  std::vector<AxisDifferences> axes;
  const std::int64_t elements = element_count(naming.shape);
  for (std::size_t d = 0; d < naming.shape.size(); ++d) {
    AxisDifferences axis;
    axis.name = naming.axes[d];
    axis.length = naming.shape[d];
    const verify::IndexCounts &counts = pass.differing_at[d], &zeros = pass.zero_at[d];
    const std::int64_t each = elements / naming.shape[d];
    axis.ranges = counts.ranges([](std::int64_t n, std::int64_t) { return n > 0; });
    axis.indices = verify::indices_in(axis.ranges);
    axis.whole = counts.ranges([&](std::int64_t n, std::int64_t indices) { return n == each * indices; });
    std::size_t i = 0;  // both are asked in the same order
    axis.zero = counts.ranges([&](std::int64_t n, std::int64_t) { return zeros.counts[i++] == n && n > 0; });
    axes.push_back(std::move(axis));
  }
  return axes;
}

std::vector<RunDifferences> runs_of(const Naming& naming, const PassResult& pass) {
  std::vector<RunDifferences> runs;
  const std::int64_t elements = element_count(naming.shape);
  for (const Naming::Run& run : naming.runs) {
    const verify::IndexCounts& counts = pass.differing_at[run.axis];
    if (counts.bin != 1) continue;  // bins are no groups
    for (std::size_t g = 0; g + 1 < run.offsets.size(); ++g) {
      const std::int64_t begin = run.offsets[g], end = run.offsets[g + 1];
      const std::int64_t differing =
          std::accumulate(counts.counts.begin() + begin, counts.counts.begin() + end, std::int64_t{0});
      if (differing > 0)
        runs.push_back({run.name, static_cast<std::int64_t>(g), begin, end,
                        (end - begin) * (elements / naming.shape[run.axis]), differing});
    }
  }
  return runs;
}

}  // namespace verify

namespace {

using verify::axes_of, verify::grid_of, verify::naming_of, verify::runs_of, verify::tiles_of;

// When an element agrees with what is predicted: within the tolerance, or so many units in the last place.
verify::Agreement agreement_of(const Comparison& c, NanEqual nan) {
  verify::Agreement agree{c.rtol, c.atol, nan == NanEqual::yes};
  if (c.by_size || !c.max_ulp) return agree;
  double unit = 0;
  for (const DType dtype : {c.actual_dtype, c.expected_dtype})
    if (is_float(dtype)) unit = std::max(unit, verify::float_type(dtype).epsilon());
  const auto units = static_cast<double>(*c.max_ulp);
  agree.rtol = units * unit;
  agree.atol = unit > 0 ? 0 : units;
  return agree;
}

}  // namespace

namespace {

// The orders of axes that make the shape of `actual` that of `expected`, each but once: axes of length 1 are anywhere.
std::vector<std::vector<std::size_t>> orders_of(const Shape& actual, const Shape& expected) {
  std::vector<std::vector<std::size_t>> orders;
  std::set<std::vector<std::size_t>> seen;
  std::vector<std::size_t> order(actual.size());
  std::iota(order.begin(), order.end(), 0);
  if (actual.size() != expected.size() || actual.size() > 7) return orders;
  do {
    std::vector<std::size_t> longer;
    bool fits = true;
    for (std::size_t d = 0; d < order.size() && fits; ++d) {
      fits = actual[order[d]] == expected[d];
      if (expected[d] > 1) longer.push_back(order[d]);
    }
    if (fits && seen.insert(std::move(longer)).second) orders.push_back(order);
  } while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

// Of the orders of axes the one in which most of some elements agree; it is looked at whole where half of them do.
std::optional<PermutedAxes> permuted_axes(const ArraySource& actual, const ArraySource& expected,
                                          const Tolerance& tolerance) {
  constexpr std::uint64_t kElements = 256;
  const Shape& shape = expected.shape();
  if (!actual.mapped() || element_count(shape) == 0 || element_count(actual.shape()) != element_count(shape))
    return std::nullopt;
  const auto permuted = [&](const std::vector<std::size_t>& order) {
    ArrayView view = *actual.mapped();
    for (std::size_t d = 0; d < order.size(); ++d) {
      view.shape[d] = actual.mapped()->shape[order[d]];
      view.strides[d] = actual.mapped()->strides[order[d]];
    }
    return make_source(view, actual.name());
  };
  const auto [usual_rtol, usual_atol] = default_tolerance(actual.dtype(), expected.dtype());
  const verify::Agreement agree{tolerance.rtol.value_or(usual_rtol), tolerance.atol.value_or(usual_atol)};
  const Side e(expected);
  std::vector<std::size_t> best;
  std::uint64_t most = kElements / 2;
  for (const auto& order : orders_of(actual.shape(), shape)) {
    const auto source = permuted(order);
    const Side a(*source);
    std::uint64_t good = 0;
    for (std::uint64_t n = 0; n < kElements; ++n) {
      Shape at(shape.size());
      for (std::size_t d = 0; d < at.size(); ++d)
        at[d] = static_cast<std::int64_t>(core::splitmix64(n * at.size() + d) %
                                          static_cast<std::uint64_t>(shape[d]));
      good += agree(a.element(at), e.element(at));
    }
    if (good > most) most = good, best = order;
  }
  if (best.empty()) return std::nullopt;
  return PermutedAxes{{best.begin(), best.end()}, compare_arrays(*permuted(best), expected, tolerance)};
}

}  // namespace

Explained explain_difference(const ArraySource& actual, const ArraySource& expected,
                             const ExplainOptions& options,
                             const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const Shape& shape = expected.shape();
  const bool alike = actual.shape() == shape;
  const Naming naming = alike ? naming_of(shape, options) : Naming{};
  const TileGrid grid =
      alike ? grid_of(shape, options.tile, verify::tile_axes_of(naming, options.tile_axes)) : TileGrid{};
  Explained explained;
  explained.comparison = compare_arrays(actual, expected, options.tolerance, progress);
  const Comparison& c = explained.comparison;
  if (!alike) explained.permuted = permuted_axes(actual, expected, options.tolerance);
  if (c.close || !alike || shape.empty()) return explained;

  const verify::Judge judge(actual.dtype(), expected.dtype(), verify::rule_of(c, options.tolerance));
  const verify::Agreement agree = agreement_of(c, options.tolerance.nan);
  const Side a(actual), e(expected);
  verify::ValueSearch search({a, e, judge, agree, naming, grid}, [&](std::int64_t done) {
    if (progress) progress(done, c.elements);
  });
  explained.axes = axes_of(naming, search.rest());
  explained.runs = runs_of(naming, search.rest());
  if (grid.rows > 0) explained.tiles = tiles_of(grid, shape, search.rest().tiles);
  const std::vector<verify::Sample>& samples = search.rest().samples;
  if (std::all_of(samples.begin(), samples.end(), [](const auto& s) { return s.actual == s.expected; })) {
    explained.not_tried = "anything: the values differ by less than float64 holds";  // large integers
    return explained;
  }
  verify::ValueStories stories = search.run();
  const auto all = static_cast<double>(search.all());
  for (verify::ValueStory& story : stories.stories)
    explained.explanations.push_back(
        {std::move(story.kind), std::move(story.text), static_cast<double>(story.elements) / all});
  if (all > 0) explained.share_explained = (all - static_cast<double>(stories.left)) / all;
  explained.not_tried = std::move(stories.not_tried);
  return explained;
}

std::int64_t explain_bytes(const ArraySource& actual, const ArraySource& expected) {
  const std::int64_t compared = compare_bytes(actual, expected);
  const Shape& shape = expected.shape();
  if (element_count(shape) == 0 || shape.empty()) return compared;
  const Side a(actual), e(expected);
  constexpr std::int64_t kTiles = kPictureCells * kPictureCells * 8;
  // The last pass, and the one before it, whose result is kept.
  return std::max(compared,
                  verify::finder_bytes(shape) + 2 * verify::pass_bytes(a, e) + (threads() + 2) * kTiles);
}

Report describe(const Explained& explained) {
  Report comparison = describe(explained.comparison);
  if (explained.permuted) {
    const PermutedAxes& p = *explained.permuted;
    const std::string order = fmt::format("{}", fmt::join(p.axes, ", "));
    comparison.add("permuted_axes", "axes in the order", Shape(p.axes))
        .add("permuted_close", "close then", p.comparison.close)
        .add("permuted_differing", "elements that differ then", p.comparison.differing, Unit::count)
        .add(Remark{fmt::format("ACTUAL.transpose({}) {} EXPECTED.", order,
                                p.comparison.close ? "is close to" : "has most elements of")});
  }
  if (explained.axes.empty()) {
    if (!explained.not_tried.empty()) comparison.add("not_tried", "not tried", explained.not_tried);
    return comparison;
  }
  // Where and why stand before the tables of single elements.
  Report report;
  report.warnings = std::move(comparison.warnings);
  const auto tables =
      std::find_if(comparison.items.begin(), comparison.items.end(),
                   [](const Report::Item& item) { return std::holds_alternative<Table>(item); });
  std::move(comparison.items.begin(), tables, std::back_inserter(report.items));
  Table axes{"axes",
             "where they differ",
             {{"axis", "axis"},
              {"length", "length", Unit::none, true},
              {"indices", "indices"},
              {"ranges", "which"},
              {"whole", "wholly different"},
              {"zero", "wholly 0"}},
             {}};
  const auto text = [](const std::vector<IndexRange>& ranges, std::int64_t length) {
    if (ranges.empty()) return ReportValue();
    if (ranges.size() == 1 && ranges[0].end - ranges[0].begin == length)
      return ReportValue(std::string("all"));
    return ReportValue(Naming::indices(ranges));
  };
  for (const AxisDifferences& axis : explained.axes)
    axes.rows.push_back({axis.name, axis.length, axis.indices, text(axis.ranges, axis.length),
                         text(axis.whole, axis.length), text(axis.zero, axis.length)});
  report.add(std::move(axes));
  if (!explained.runs.empty()) {
    Table runs{"runs",
               "groups and sequences that differ",
               {{"of", ""},
                {"index", "index"},
                {"begin", "from"},
                {"end", "to"},
                {"differing", "differ"},
                {"differing_share", "share", Unit::share}},
               {},
               16};
    for (const RunDifferences& run : explained.runs)
      runs.rows.push_back({run.name, run.index, run.begin, run.end, run.differing,
                           verify::share_of(run.differing, run.elements)});
    report.add(std::move(runs));
  }
  report.add("share_explained", "accounted for", explained.share_explained, Unit::share);
  report.add(table_of(explained.explanations));
  if (explained.explanations.empty())
    report.add(Remark{"Nothing that was tried accounts for the differences."});
  if (!explained.not_tried.empty()) report.add("not_tried", "not tried", explained.not_tried);
  const auto has_contrast = [](const TileDifferences& tiles) {
    const auto states = tiles.states->held();
    return std::adjacent_find(states.begin(), states.end(), std::not_equal_to<>()) != states.end();
  };
  if (explained.tiles && has_contrast(*explained.tiles)) {
    const TileDifferences& t = *explained.tiles;
    const auto name = [&](std::int64_t axis) { return explained.axes[static_cast<std::size_t>(axis)].name; };
    BlockPicture picture{"tiles",
                         fmt::format("tiles of {} x {} elements ({} down, {} across)", t.tile_rows,
                                     t.tile_columns, name(t.row_axis), name(t.column_axis)),
                         t.states};
    picture.state_names = {"nothing differs", "something differs", "everything differs"};
    picture.block_name = "tile";
    report.add(std::move(picture));
  }
  std::move(tables, comparison.items.end(), std::back_inserter(report.items));
  return report;
}

}  // namespace ejk
