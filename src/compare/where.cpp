// Where elements differ: counts by axis and a picture. Axes have the names of the caller or numbers. By
// default a picture has at most 64 tiles along an axis.
// tests: tests/compare/test_explain.cpp
#include "compare/where.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "compare/report_parts.hpp"
#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"

namespace ejk::verify {

namespace {

constexpr std::int64_t kMostTiles = std::int64_t{1} << 22;

Naming::Run run_of(const IntegerArray& sizes_or_offsets, const char* name, std::vector<std::int64_t> offsets,
                   const Shape& shape) {
  const std::int64_t end = offsets.back();
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (shape[d] == end) return {d, name, std::move(offsets)};
  throw core::invalid("{}: its {}s end at {}, and no axis of shape {} has that length",
                      sizes_or_offsets->name(), name, end, to_string(shape));
}

std::vector<std::int64_t> sums_of(const ArraySource& sizes) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t size : core::read_integers(sizes, "group sizes")) {
    const auto next = size < 0 ? std::nullopt : core::checked_add(offsets.back(), size);
    if (!next) throw core::invalid("{}: size {} is {}", sizes.name(), offsets.size() - 1, size);
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
    throw core::usage("{} names for the {} axes of shape {}", naming.axes.size(), shape.size(),
                      to_string(shape));
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

TileAxes tile_axes_of(const Naming& naming, const std::vector<std::string>& words) {
  if (words.empty()) return std::nullopt;
  std::array<std::size_t, 2> axes{};
  for (std::size_t n = 0; n < words.size() && n < 2; ++n) {
    const auto named = std::find(naming.axes.begin(), naming.axes.end(), words[n]);
    axes[n] = static_cast<std::size_t>(named - naming.axes.begin());
    for (std::size_t d = 0; d < naming.axes.size(); ++d)
      if (named == naming.axes.end() && words[n] == fmt::format("{}", d)) axes[n] = d;
    if (axes[n] >= naming.axes.size())
      throw core::usage("there is no axis {}: they are {}", printable(words[n]),
                        fmt::join(naming.axes, ", "));
  }
  if (words.size() != 2 || axes[0] == axes[1])
    throw Error(Error::Kind::usage, "tiles have two axes, each another one");
  return axes;
}

TileGrid grid_of(const Shape& shape, const Shape& tile, const TileAxes& axes) {
  TileGrid grid;
  if (!tile.empty() && (tile.size() != 2 || tile[0] < 1 || tile[1] < 1))
    throw core::usage("a tile has rows and columns, not the shape {}", to_string(tile));
  if (element_count(shape) == 0) return grid;
  if (shape.size() < 2) {
    if (!tile.empty()) throw core::usage("arrays of shape {} have no tiles", to_string(shape));
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
    throw core::usage("tiles of {} x {} are {} x {}, more than can be counted", grid.tile_rows,
                      grid.tile_columns, grid.rows, grid.columns);
  return grid;
}

TileDifferences tiles_of(const Shape& shape, const PositionCounts& counts) {
  const TileGrid& grid = counts.grid;
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
      const std::int64_t n = counts.tiles[static_cast<std::size_t>(r * grid.columns + c)];
      states.push_back(n == 0 ? 0 : n == all ? 2 : 1);
    }
  tiles.states = std::make_shared<const BlockStates>(grid.columns, std::move(states));
  return tiles;
}

bool has_contrast(const BlockStates& states) {
  const auto all = states.stored();
  return std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) != all.end();
}

std::optional<BlockPicture> picture_of(const TileDifferences& tiles, const std::vector<AxisDifferences>& axes,
                                       std::array<std::string, 3> state_names) {
  if (!has_contrast(*tiles.states)) return std::nullopt;
  const AxisDifferences &rows = axes[static_cast<std::size_t>(tiles.row_axis)],
                        &columns = axes[static_cast<std::size_t>(tiles.column_axis)];
  BlockPicture picture{"tiles",
                       fmt::format("tiles of {} x {} elements ({} down, {} across)", tiles.tile_rows,
                                   tiles.tile_columns, rows.name, columns.name),
                       tiles.states};
  picture.state_names = std::move(state_names);
  picture.block_name = "tile";
  picture.row_axis = {rows.name, tiles.tile_rows, rows.length};
  picture.column_axis = {columns.name, tiles.tile_columns, columns.length};
  return picture;
}

std::vector<AxisDifferences> axes_of(const Naming& naming, const PositionCounts& counted,
                                     const PositionCounts* zeros) {
  std::vector<AxisDifferences> axes;
  const std::int64_t elements = element_count(naming.shape);
  for (std::size_t d = 0; d < naming.shape.size(); ++d) {
    AxisDifferences axis;
    axis.name = naming.axes[d];
    axis.length = naming.shape[d];
    const IndexCounts& counts = counted.axes[d];
    const std::int64_t each = elements / naming.shape[d];
    axis.ranges = counts.ranges([](std::int64_t n, std::int64_t) { return n > 0; });
    axis.indices = indices_in(axis.ranges);
    axis.whole = counts.ranges([&](std::int64_t n, std::int64_t indices) { return n == each * indices; });
    std::size_t i = 0;  // both in the same order
    if (zeros != nullptr)
      axis.zero = counts.ranges(
          [&](std::int64_t n, std::int64_t) { return zeros->axes[d].counts[i++] == n && n > 0; });
    axes.push_back(std::move(axis));
  }
  return axes;
}

std::vector<RunDifferences> runs_of(const Naming& naming, const PositionCounts& counted) {
  std::vector<RunDifferences> runs;
  const std::int64_t elements = element_count(naming.shape);
  for (const Naming::Run& run : naming.runs) {
    const IndexCounts& counts = counted.axes[run.axis];
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

namespace {

ReportValue ranges_value(const std::vector<IndexRange>& ranges, std::int64_t length) {
  if (ranges.empty()) return {};
  if (ranges.size() == 1 && ranges[0].count() == length) return std::string("all");
  return Naming::indices(ranges);
}

}  // namespace

Table table_of(const std::vector<AxisDifferences>& axes, std::string title, std::string whole,
               const std::string& zero) {
  Table table{"axes",
              std::move(title),
              {{"axis", "axis"},
               {"length", "length", Unit::none, true},
               {"indices", "indices"},
               {"ranges", "which"},
               {"whole", std::move(whole)}},
              {}};
  if (!zero.empty()) table.columns.push_back({"zero", zero});
  for (const AxisDifferences& axis : axes) {
    table.rows.push_back({axis.name, axis.length, axis.indices, ranges_value(axis.ranges, axis.length),
                          ranges_value(axis.whole, axis.length)});
    if (!zero.empty()) table.rows.back().push_back(ranges_value(axis.zero, axis.length));
  }
  return table;
}

Table table_of(const std::vector<RunDifferences>& runs, std::string key, std::string title,
               const std::string& counted, std::string label) {
  Table table{std::move(key),
              std::move(title),
              {{"of", ""},
               {"index", "index"},
               {"begin", "from"},
               {"end", "to"},
               {counted, std::move(label)},
               {counted + "_share", "share", Unit::share}},
              {},
              16};
  for (const RunDifferences& run : runs)
    table.rows.push_back(
        {run.name, run.index, run.begin, run.end, run.differing, share_of(run.differing, run.elements)});
  return table;
}

}  // namespace ejk::verify
