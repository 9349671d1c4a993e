// Cost of walking groups in tiles, for other tile sizes, too. A group that begins within a tile shares it
// with the previous group: it is computed for both. So a group has at least ceil(n_g/tm) tiles and at most
// one more. Time: O(G) for each tile size; rows are doubles, exact below 2^53.
// tests: tests/matmul/test_describe_groups.cpp
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/distribution.hpp"
#include "ejk/program/text.hpp"
#include "matmul/tiles.hpp"

namespace ejk {

namespace {

struct Walk {
  std::int64_t visited = 0;    // tiles, each as often as a group works in it
  std::int64_t for_empty = 0;  // of them, for groups without rows
  std::int64_t aligned = 0;    // the least: every group begins with a tile
  std::int64_t row_tiles = 0;  // T, whatever the groups
  double rows = 0;             // in the tiles visited
  double own = 0;              // of them, those of the group that the visit is for
  double no_group_rows = 0;    // past the last group, or past m in a tile cut short
  double thrown_away() const { return rows - own; }
  double other_group_rows() const { return rows - own - no_group_rows; }
};

// The groups that are computed: offsets[first] … offsets[first + count].
struct Wanted {
  std::span<const std::int32_t> offsets;
  std::int64_t first = 0, count = 0;

  std::int64_t begin(std::int64_t i) const { return offsets[static_cast<std::size_t>(first + i)]; }
  std::int64_t end(std::int64_t i) const { return offsets[static_cast<std::size_t>(first + i + 1)]; }
  std::int64_t past_last() const { return offsets.back(); }
};

Walk walk(const Wanted& wanted, std::int64_t m, std::int64_t tm, EmptyGroups empty) {
  Walk result;
  result.row_tiles = core::ceil_div(m, tm);
  for (std::int64_t i = 0; i < wanted.count; ++i) {
    const std::int64_t begin = wanted.begin(i), end = wanted.end(i);
    const std::int64_t tiles = matmul::tiles_of(begin, end, tm, empty);
    result.visited += tiles;
    result.aligned += core::ceil_div(end - begin, tm);
    result.own += static_cast<double>(end - begin);
    if (end == begin) result.for_empty += tiles;
    if (tiles == 0 || m == 0) continue;
    // Only the last of its tiles may reach past the last group.
    const std::int64_t last = end > begin ? (end - 1) / tm : std::min(begin / tm, result.row_tiles - 1);
    result.no_group_rows +=
        static_cast<double>(tm - std::clamp<std::int64_t>(wanted.past_last() - last * tm, 0, tm));
  }
  // Without rows there are no tiles either, though empty groups count theirs.
  if (m > 0) result.rows = static_cast<double>(result.visited) * static_cast<double>(tm);
  return result;
}

Section tiles_section(const Walk& w) {
  const auto tiles = std::make_shared<Report>();
  tiles->add("tiles_visited", "tiles visited", w.visited, Unit::count);
  if (w.for_empty > 0)
    tiles->add("tiles_of_empty_groups", "of them for empty groups", w.for_empty, Unit::count);
  tiles->add("tiles_aligned", "least, each group at a tile", w.aligned, Unit::count)
      .add("tiles_of_rows", "tiles that all rows make", w.row_tiles, Unit::count)
      .add("rows_computed", "rows computed", whole_number(w.rows), Unit::count)
      .add("rows_thrown_away", "rows thrown away", whole_number(w.thrown_away()), Unit::count)
      .add("thrown_away_share", "thrown away, share", ratio(w.thrown_away(), w.rows), Unit::share)
      .add("rows_of_other_groups", "thrown away, of other groups", whole_number(w.other_group_rows()),
           Unit::count)
      .add("rows_of_no_group", "thrown away, of no group", whole_number(w.no_group_rows), Unit::count);
  return {"tiles", "tiles", tiles};
}

Table histogram(const std::vector<std::int64_t>& sorted, double all_rows) {
  Table table{"histogram",
              "groups by rows",
              {{"range", "rows"},
               {"from", "from", Unit::none, true},
               {"to", "to", Unit::none, true},
               {"groups", "groups"},
               {"share", "", Unit::bar},
               {"row_share", "of all rows", Unit::share}},
              {},
              64};
  for (const core::Bin& bin : core::doubling_bins(sorted))
    table.rows.push_back({bin.range(), bin.from, bin.to, bin.count,
                          static_cast<double>(bin.count) / static_cast<double>(sorted.size()),
                          ratio(bin.sum, all_rows)});
  return table;
}

Section load_section(const Wanted& wanted) {
  std::vector<std::int64_t> sorted(static_cast<std::size_t>(wanted.count));
  std::int64_t largest = 0;
  for (std::int64_t i = 0; i < wanted.count; ++i) {
    const std::int64_t size = wanted.end(i) - wanted.begin(i);
    if (size > sorted[static_cast<std::size_t>(largest)]) largest = i;
    sorted[static_cast<std::size_t>(i)] = size;
  }
  std::sort(sorted.begin(), sorted.end());
  const double rows = std::accumulate(sorted.begin(), sorted.end(), 0.0);
  const double mean = rows / static_cast<double>(wanted.count);

  const auto load = std::make_shared<Report>();
  load->add("empty_groups", "empty groups",
            static_cast<std::int64_t>(std::upper_bound(sorted.begin(), sorted.end(), 0) - sorted.begin()),
            Unit::count)
      .add("smallest", "smallest", sorted.front(), Unit::rows)
      .add("mean", "mean", mean, Unit::rows)
      .add("largest", "largest", sorted.back(), Unit::rows)
      .add("largest_group", "the largest is group", wanted.first + largest)
      .add("max_over_mean", "largest over mean", ratio(static_cast<double>(sorted.back()), mean));
  Table percentiles{"percentiles", "percentiles of rows", {}, {{}}, 1};
  for (const int percent : {1, 5, 25, 50, 75, 95, 99}) {
    percentiles.columns.push_back({fmt::format("p{}", percent), fmt::format("{} %", percent)});
    percentiles.rows[0].emplace_back(core::percentile(sorted, percent));
  }
  load->add(std::move(percentiles)).add(histogram(sorted, rows));
  return {"load", "how evenly the groups are filled", load};
}

Table tile_sizes(const Wanted& wanted, const GroupMetadata& metadata) {
  Table table{"tile_sizes",
              "the same groups in other tiles",
              {{"tm", "tm"},
               {"tiles_visited", "visited"},
               {"tiles_aligned", "aligned"},
               {"tiles_of_rows", "of all rows"},
               {"rows_computed", "rows computed"},
               {"rows_thrown_away", "thrown away"},
               {"thrown_away_share", "share", Unit::share}},
              {}};
  for (const std::int64_t tm : matmul::neighbours(metadata.tm)) {
    const Walk w = walk(wanted, metadata.m, tm, metadata.options.empty_groups);
    table.rows.push_back({tm, w.visited, w.aligned, w.row_tiles, whole_number(w.rows),
                          whole_number(w.thrown_away()), ratio(w.thrown_away(), w.rows)});
  }
  return table;
}

}  // namespace

Report describe(const GroupMetadata& metadata) {
  const GroupMetadataOptions& options = metadata.options;
  const std::int64_t groups = metadata.group_offsets.size() - 1;
  const Wanted wanted{metadata.group_offsets.elements<std::int32_t>(), options.start_group,
                      matmul::groups_wanted(groups, options)};
  const std::int64_t past = metadata.m - wanted.past_last();

  Report report;
  report.add("groups", "groups", groups, Unit::count);
  if (wanted.count < groups) {
    report.add("groups_wanted", "groups computed", wanted.count, Unit::count);
    report.add("start_group", "from group", options.start_group);
  }
  report.add("m", "rows (m)", metadata.m, Unit::count)
      .add("rows_past_last_group", "rows past the last group", past, Unit::count)
      .add("tm", "rows of a tile (tm)", metadata.tm, Unit::count)
      .add("visit_empty_groups", "empty groups are visited", options.empty_groups == EmptyGroups::visit)
      .add("num_tiles", "steps (num_tiles)", std::int64_t{metadata.num_tiles.elements<std::int32_t>()[0]},
           Unit::count)
      .add("length", "entries of the lists", metadata.group_ids.size(), Unit::count);
  if (past > 0)
    report.warnings.push_back(fmt::format("{} of {} rows are past the last group and belong to none",
                                          format_count(past), format_count(metadata.m)));
  if (wanted.count == 0) {
    report.add(Remark{groups == 0 ? "There are no groups." : "None of the groups is computed."});
    report.add(Section{"tiles", "", nullptr}).add(Section{"load", "", nullptr});
    report.add(Table{"tile_sizes", "", {}, {}});
    return report;
  }
  report.add(tiles_section(walk(wanted, metadata.m, metadata.tm, options.empty_groups)))
      .add(load_section(wanted))
      .add(tile_sizes(wanted, metadata));
  return report;
}

}  // namespace ejk
