// ejk group-metadata: which tiles of which groups a grouped product computes, and what tiles cost.
//
// tests: tests/cli/group-metadata/
#include <fmt/format.h>

#include <limits>

#include "commands.hpp"
#include "ejk/groups.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct Options {
  std::string group_sizes;
  std::int64_t tm = 0;
  std::optional<std::int64_t> m;
  GroupMetadataOptions how;
};

Answer run(const Options& options, Job& job) {
  job.note_setting("tm", fmt::format("{}", options.tm));
  job.note_setting("start_group", fmt::format("{}", options.how.start_group));
  if (options.how.num_nonzero_groups)
    job.note_setting("num_nonzero_groups", fmt::format("{}", *options.how.num_nonzero_groups));
  job.note_setting("visit_empty_groups", options.how.empty_groups == EmptyGroups::visit ? "true" : "false");
  const auto input =
      job.phase(Job::Phase::read, [&] { return job.open("group_sizes", options.group_sizes); });
  // The sizes as they are and widened, their offsets in two widths, and sorted for the report.
  const std::int64_t groups = element_count(input->shape());
  const std::int64_t for_groups = kPieceBytes + byte_count(input->shape(), input->dtype()) + groups * 5 * 8;
  if (for_groups > job.max_memory()) job.plan({}, for_groups);

  // The sizes say how many rows there are, so they are looked at even when nothing else is done.
  const auto sizes = job.phase(Job::Phase::read, [&] { return in_memory(*input); });
  const std::int64_t m =
      options.m ? *options.m : group_offsets(*sizes, std::numeric_limits<std::int64_t>::max()).back();
  job.note_setting("m", fmt::format("{}", m));
  const std::int64_t length = group_metadata_length(*sizes, m, options.tm, options.how);
  Report planned;
  planned.add("m", "rows (m)", m, Unit::count)
      .add("group_offsets", "group_offsets", Shape{groups + 1})
      .add("group_ids", "group_ids", Shape{length})
      .add("m_tile_ids", "m_tile_ids", Shape{m == 0 ? 0 : length});
  if (job.plan(planned, for_groups + length * 2 * 4)) return Answer::yes;

  const GroupMetadata made =
      job.phase(Job::Phase::compute, [&] { return make_group_metadata(*sizes, m, options.tm, options.how); });
  job.deliver(describe(made), {{"group_offsets", make_source(made.group_offsets.view()), {}},
                               {"group_ids", make_source(made.group_ids.view()), {}},
                               {"m_tile_ids", make_source(made.m_tile_ids.view()), {}},
                               {"num_tiles", make_source(made.num_tiles.view()), {}}});
  return Answer::yes;
}

}  // namespace

Run group_metadata(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  const auto whole = [](std::int64_t least) {
    return [least](const std::string& word) { return read_integer(word, least); };
  };
  add_reference(
      app, "GROUP_SIZES", options->group_sizes,
      "rows of each group (groups,)\nIntegers of at least 0; groups follow one another in the rows.")
      .required();
  add_word(app, "--tm", options->tm, whole(1), "T", "rows of a tile").required();
  add_word(app, "--m", options->m, whole(0), "M",
           "all rows, the sum of the sizes by default\nRows past the last group belong to none.");
  add_word(app, "--start-group", options->how.start_group, whole(0), "S",
           "the first group that is computed, 0 by default\nIts tiles come first in the lists.");
  add_word(app, "--num-nonzero-groups", options->how.num_nonzero_groups, whole(0), "N",
           "how many groups are computed, by default all of the rest\nEmpty ones count too.");
  add_flag(
      app, "--no-visit-empty-groups", [options] { options->how.empty_groups = EmptyGroups::skip; },
      "no tile for a group without rows\n"
      "A transposed product visits empty groups to write their zeros; a product of rows has nothing to do "
      "there.");
  add_flag(app, "--strict", options->how.strict,
           "refuse sizes that do not sum to M, and a T that does not divide it");
  set_footer(app,
             "The report says what the tiles cost: a group that begins within a tile shares\n"
             "it, and rows computed for the wrong group are thrown away. 'aligned' is the\n"
             "least number of tiles there can be: every group begins with one.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace ejk::app
