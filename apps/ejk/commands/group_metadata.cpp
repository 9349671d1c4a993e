// ejk group-metadata: the tiles that a grouped product computes for each group, and their cost.
//
// tests: tests/cli/group-metadata/
#include <fmt/format.h>

#include <limits>

#include "commands.hpp"
#include "ejk/groups.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct Options {
  std::string group_sizes;
  GroupsFrom from = GroupsFrom::automatic;
  std::int64_t tm = 0;
  std::optional<std::int64_t> m;
  GroupMetadataOptions how;
};

Outcome run(const Options& options, Job& job) {
  const auto input = job.open("group_sizes", options.group_sizes);
  const std::int64_t groups = element_count(input->shape());
  job.require_memory(kPieceBytes + group_metadata_bytes(groups));

  // The sizes determine the number of rows, so a dry run reads them too.
  Report read;
  const auto sizes =
      job.phase(Phase::read, [&] { return group_sizes_of(*input, options.from, options.m, {}, read); });
  const std::int64_t m =
      options.m ? *options.m : group_offsets(*sizes, std::numeric_limits<std::int64_t>::max()).back();
  job.provenance.record("m", fmt::format("{}", m));
  const std::int64_t length = group_metadata_length(*sizes, m, options.tm, options.how);
  Report planned = read;
  planned.add("m", "rows (m)", m, Unit::count)
      .add("group_offsets", "group_offsets", Shape{groups + 1})
      .add("group_ids", "group_ids", Shape{length})
      .add("m_tile_ids", "m_tile_ids", Shape{m == 0 ? 0 : length});
  if (job.plan(planned, kPieceBytes + group_metadata_bytes(groups, length))) return Outcome::passed;

  const GroupMetadata made =
      job.phase(Phase::compute, [&] { return make_group_metadata(*sizes, m, options.tm, options.how); });
  Report report = describe(made);
  report.warnings.insert(report.warnings.begin(), read.warnings.begin(), read.warnings.end());
  job.deliver(std::move(report), {{"group_offsets", make_source(made.group_offsets.view()), {}},
                                  {"group_ids", make_source(made.group_ids.view()), {}},
                                  {"m_tile_ids", make_source(made.m_tile_ids.view()), {}},
                                  {"num_tiles", make_source(made.num_tiles.view()), {}}});
  return Outcome::passed;
}

Run declare_group_metadata(OptionSet& set) {
  const auto options = std::make_shared<Options>();
  add_reference(
      set, "GROUP_SIZES", options->group_sizes,
      "rows of each group (groups,)\nIntegers of at least 0; groups follow one another in the rows.")
      .required();
  add_groups_from(set, options->from);
  add_word(set, "--tm", options->tm, at_least(1), "T", "rows of a tile").required().recorded();
  add_word(set, "--m", options->m, at_least(0), "M",
           "all rows, the sum of the sizes by default\nRows past the last group belong to none.");
  add_word(set, "--start-group", options->how.start_group, at_least(0), "S",
           "the first group that is computed, 0 by default\nIts tiles come first in the lists.")
      .recorded();
  add_word(set, "--num-nonzero-groups", options->how.num_nonzero_groups, at_least(0), "N",
           "how many groups are computed, by default all of the rest\nEmpty ones count too.")
      .recorded()
      .otherwise("all");
  add_flag(set, "--no-visit-empty-groups", options->how.empty_groups, EmptyGroups::skip,
           "no tile for a group without rows\nA transposed product visits empty groups to write their zeros.")
      .recorded("visit_empty_groups", [options] { return options->how.empty_groups == EmptyGroups::visit; });
  add_flag(set, "--strict", options->how.strict,
           "refuse sizes that do not sum to M, and a T that does not divide it");
  set_footer(set,
             "The report states the cost of the tiles: groups that share a tile compute rows of\n"
             "each other, which are discarded. 'aligned': every group begins with a tile.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command group_metadata_command{
    .name = "group-metadata",
    .group = "Groups",
    .summary = "the tiles of a grouped product, and their cost",
    .example = "ejk group-metadata group_sizes.npy --tm 128 -o groups.h5",
    .outputs = {{"group_offsets", "(groups + 1,) int32",
                 "the first row of each group, and the end of the last"},
                {"group_ids", "(tiles of M + groups - 1,) int32",
                 "the group that each step of the kernel computes"},
                {"m_tile_ids", "the shape of group_ids; (0,) where M is 0",
                 "the tile of --tm rows in which it does"},
                {"num_tiles", "() int32", "the steps; later entries are unused"}},
    .use = R"(with h5py.File("groups.h5") as f: a = {name: f[name][()] for name in f}
for g, t in zip(a["group_ids"][:a["num_tiles"]], a["m_tile_ids"]):
    begin = max(t * tm, a["group_offsets"][g])
    end = min((t + 1) * tm, a["group_offsets"][g + 1])
    out[begin:end] = lhs[begin:end] @ rhs[g])",
    .keys = R"(
groups | integer | groups | done
groups_wanted, start_group | integer | groups that are computed, and the first of them | where some are left out
m | integer | rows
rows_past_last_group | integer | rows after the last group, which belong to none | done
tm | integer | rows of a tile | done
visit_empty_groups | boolean | whether empty groups get a step | done
num_tiles | integer | steps of the kernel | done
length | integer | entries of group_ids, and of m_tile_ids but for M = 0 | done
group_offsets, group_ids, m_tile_ids | shape | the shapes of the arrays | plan
tiles | section | cost of the tiles; empty where no group is computed | done
  tiles_visited | integer | tiles that the kernel computes
  tiles_of_empty_groups | integer | of them for empty groups | where empty groups are visited
  tiles_aligned | integer | tiles if each group began at one: the least
  tiles_of_rows | integer | tiles that all rows make
  rows_computed | integer | rows in the tiles that are computed
  rows_thrown_away | integer | of these, rows outside the group
  thrown_away_share | share or null | rows_thrown_away / rows_computed
  rows_of_other_groups, rows_of_no_group | integer | discarded rows of other groups, and of none
load | section | rows of the groups; empty where no group is computed | done
  empty_groups | integer | groups without a row
  smallest | integer | rows of the smallest group
  mean | number | rows of a group on average
  largest, largest_group | integer | rows of the largest group, and its number
  max_over_mean | number or null | largest / mean
  percentiles | table | one row
    pN | number | p1, p5, p25, p50, p75, p95 and p99 of rows of a group, interpolated as NumPy does
  histogram | table | groups by rows, in bins that double
    range | string | the bin: 4-7
    from, to | integer | its least and largest number of rows
    groups | integer | groups in it
    share | share | of all groups
    row_share | share or null | its groups' share of all rows
tile_sizes | table | the same groups in other tiles | done
  tm | integer | rows of a tile
  tiles_visited | integer | tiles that the kernel computes
  tiles_aligned | integer | tiles if each group began at one
  tiles_of_rows | integer | tiles that all rows make
  rows_computed | integer | rows in the tiles that are computed
  rows_thrown_away | integer | of these, rows outside the group
  thrown_away_share | share or null | rows_thrown_away / rows_computed
)",
    .declare = declare_group_metadata,
};

}  // namespace ejk::app
