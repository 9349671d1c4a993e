// ejk group-metadata: which tiles of which groups a grouped product computes, and what tiles cost.
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

}  // namespace

Run group_metadata(OptionSet& set) {
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
  add_flag(
      set, "--no-visit-empty-groups", options->how.empty_groups, EmptyGroups::skip,
      "no tile for a group without rows\n"
      "A transposed product visits empty groups to write their zeros; a product of rows has nothing to do "
      "there.")
      .recorded("visit_empty_groups", [options] { return options->how.empty_groups == EmptyGroups::visit; });
  add_flag(set, "--strict", options->how.strict,
           "refuse sizes that do not sum to M, and a T that does not divide it");
  set_footer(set,
             "The report says what the tiles cost: a group that begins within a tile shares\n"
             "it, and rows computed for the wrong group are thrown away. 'aligned' is the\n"
             "least number of tiles there can be: every group begins with one.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace ejk::app
