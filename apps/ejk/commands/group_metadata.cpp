// ejk group-metadata: the tiles that a grouped product computes for each group, and their cost.
//
// tests: tests/cli/group-metadata/
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "commands.hpp"
#include "ejk/groups.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct Options {
  std::string group_sizes, topk_ids;
  GroupsFrom from = GroupsFrom::automatic;
  std::optional<std::int64_t> tm, m, experts;
  GroupMetadataOptions how;
  std::optional<GroupLayout> layout;  // none: JAX's
  GroupLayoutSettings settings;
  std::int64_t ranks = 1;
};

std::vector<std::string> arrays_of(std::optional<GroupLayout> layout, bool with_topology) {
  if (layout) return group_array_names(*layout, with_topology);
  return {"group_offsets", "group_ids", "m_tile_ids", "num_tiles"};
}

void check_words(const Options& options) {
  if (options.group_sizes.empty() == options.topk_ids.empty())
    throw usage(options.topk_ids.empty() ? "GROUP_SIZES is missing"
                                         : "GROUP_SIZES and --topk-ids both give the groups")
        .hint("ejk group-metadata group_sizes.npy --tm 128, or --topk-ids ids.npy --experts 8 in its place");
  struct Given {
    bool is;
    const char* what;
  };
  if (!options.layout) {
    for (const Given& given : {Given{options.settings.align.has_value(), "--align"},
                               Given{options.settings.last_is_total, "--last-is-total"},
                               Given{options.settings.ffn_blocks != 0, "--ffn-blocks"}})
      if (given.is) throw usage("{} requires another --layout than jax", given.what);
    if (!options.tm)
      throw usage("--tm T is missing: the rows of a tile")
          .hint("for example: ejk group-metadata group_sizes.npy --tm 128 -o groups.h5");
    return;
  }
  const GroupMetadataOptions usual;
  for (const Given& given :
       {Given{options.tm.has_value(), "--tm"}, Given{options.how.strict, "--strict"},
        Given{options.how.start_group != usual.start_group, "--start-group"},
        Given{options.how.num_nonzero_groups.has_value(), "--num-nonzero-groups"},
        Given{options.how.empty_groups != usual.empty_groups, "--no-visit-empty-groups"}})
    if (given.is)
      throw usage("{} requires --layout jax", given.what).hint("--align N pads the groups of other layouts");
}

// The groups as rows of their choices, which are those of --topk-ids or sorted already.
Route route_of(const Options& options, Job& job, Report& report) {
  if (!options.topk_ids.empty()) {
    const auto ids = job.open("topk_ids", options.topk_ids);
    job.require_memory(route_bytes(*ids, *options.experts));
    return job.phase(Phase::read, [&] { return make_route(ids, *options.experts); });
  }
  const auto input = job.open("group_sizes", options.group_sizes);
  const auto sizes =
      job.phase(Phase::read, [&] { return group_sizes_of(*input, options.from, options.m, {}, report); });
  std::vector<std::int64_t> rows = group_offsets(*sizes, std::numeric_limits<std::int64_t>::max());
  job.require_memory(sorted_route_bytes(rows.back()));
  for (std::size_t g = rows.size() - 1; g > 0; --g) rows[g] -= rows[g - 1];
  rows.erase(rows.begin());
  return sorted_route(rows);
}

Outcome run_layout(const Options& options, Job& job) {
  Report report;
  const Route route = route_of(options, job, report);
  GroupLayoutSettings settings = options.settings;
  settings.layout = *options.layout;
  if (options.m) {
    settings.rows = options.m;
    job.provenance.record("m", fmt::format("{}", *options.m));
  }
  Report planned = report;
  planned.add("layout", "layout", std::string(name_of(settings.layout)))
      .add("groups", "groups", route.group_sizes.size(), Unit::count);
  if (job.plan(planned, sorted_route_bytes(route.order.size()) + group_arrays_bytes(route, settings)))
    return Outcome::passed;
  const GroupArrays made = job.phase(Phase::compute, [&] {
    try {
      return make_group_arrays(route, settings);
    } catch (Error& error) {
      if (error.kind() == Error::Kind::usage && settings.align.value_or(0) == 0)
        error.hint("--align N gives it");
      throw;
    }
  });
  append(report, describe(made));
  append(report, describe(route, options.ranks));
  std::vector<Output> outputs;
  for (const auto& [name, array] : made.arrays) outputs.push_back({name, make_source(array.view()), {}});
  job.deliver(std::move(report), outputs);
  return Outcome::passed;
}

Outcome run(const Options& options, Job& job) {
  check_words(options);
  if (options.layout) return run_layout(options, job);
  std::optional<Route> route;
  if (!options.topk_ids.empty()) {
    Report unused;
    route = route_of(options, job, unused);
  }
  const auto input = route ? make_source(route->group_sizes.view(), printable(options.topk_ids))
                           : job.open("group_sizes", options.group_sizes);
  const std::int64_t groups = element_count(input->shape());
  job.require_memory(kPieceBytes + group_metadata_bytes(groups));

  // The sizes determine the number of rows, so a dry run reads them too.
  Report read;
  const auto sizes =
      job.phase(Phase::read, [&] { return group_sizes_of(*input, options.from, options.m, {}, read); });
  const std::int64_t m =
      options.m ? *options.m : group_offsets(*sizes, std::numeric_limits<std::int64_t>::max()).back();
  job.provenance.record("m", fmt::format("{}", m));
  const std::int64_t length = group_metadata_length(*sizes, m, *options.tm, options.how);
  Report planned = read;
  planned.add("m", "rows (m)", m, Unit::count)
      .add("group_offsets", "group_offsets", Shape{groups + 1})
      .add("group_ids", "group_ids", Shape{length})
      .add("m_tile_ids", "m_tile_ids", Shape{m == 0 ? 0 : length});
  if (job.plan(planned, kPieceBytes + group_metadata_bytes(groups, length))) return Outcome::passed;

  const GroupMetadata made =
      job.phase(Phase::compute, [&] { return make_group_metadata(*sizes, m, *options.tm, options.how); });
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
      "rows of each group (groups,)\nIntegers of at least 0; groups follow one another in the rows.");
  add_groups_from(set, options->from);
  add_reference(
      set, "--topk-ids", options->topk_ids,
      "in its place the experts of each token (tokens, k)\nEach entry but -1 is a row of its expert; "
      "'ejk route' sorts them.")
      .needs("--experts");
  add_word(set, "--experts", options->experts, at_least(0), "N", "how many experts there are")
      .needs("--topk-ids");
  add_word(set, "--tm", options->tm, at_least(1), "T", "rows of a tile, for --layout jax").recorded();
  add_word(set, "--m", options->m, at_least(0), "M",
           "all rows, the sum of the sizes by default\nRows past the last group belong to none.")
      .recorded_by_command();
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
  Choices<std::optional<GroupLayout>> layouts{{"jax", std::nullopt}};
  for (const GroupLayout layout : kGroupLayouts) layouts.emplace_back(name_of(layout), layout);
  const char* const others = "Layouts of other libraries";
  add_choice(
      set, "--layout", options->layout, std::move(layouts), "LAYOUT",
      "the arrays of a library, under its names\njax: megablox and ejkernel. offsets: torch's grouped_mm and "
      "cuDNN. vllm, sglang: moe_align_block_size. deepgemm, deepgemm-psum, deepgemm-masked, megablocks.")
      .recorded()
      .group(others);
  add_word(
      set, "--align", options->settings.align, at_least(1), "N",
      "each group is padded to a multiple of N rows\nOf vllm and sglang the rows of a block. By default 1 of "
      "offsets, 128 of deepgemm and megablocks.")
      .recorded()
      .group(others);
  add_flag(
      set, "--last-is-total", options->settings.last_is_total,
      "with offsets: the last end is that of the buffer\n--m rows, or those of all padded groups: cuDNN needs it.")
      .group(others);
  add_word(set, "--ffn-blocks", options->settings.ffn_blocks, at_least(1), "N",
           "with megablocks: the topology too\nBlocks of 128 columns of an expert's hidden layer.")
      .group(others);
  add_word(set, "--ranks", options->ranks, at_least(1), "N",
           "the load of N expert-parallel ranks, with as many consecutive experts each")
      .group(others);
  set.set_outputs([options] { return arrays_of(options->layout, options->settings.ffn_blocks > 0); });
  set_footer(set,
             "The report states the cost of the tiles: groups that share a tile compute rows\n"
             "of each other, which are discarded. 'aligned': every group begins with a tile.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command group_metadata_command{
    .name = "group-metadata",
    .group = "Groups",
    .summary = "the tiles of a grouped product, and their cost",
    .example = "ejk group-metadata group_sizes.npy --tm 128 -o groups.h5",
    .outputs =
        {{"group_offsets", "(groups + 1,) int32", "the first row of each group, and the end of the last"},
         {"group_ids", "(tiles of M + groups - 1,) int32", "the group that each step of the kernel computes"},
         {"m_tile_ids", "the shape of group_ids; (0,) where M is 0",
          "the tile of --tm rows in which it does"},
         {"num_tiles", "() int32", "the steps; later entries are unused"},
         {"offs", "(groups,) int32", "offsets: the end of each group"},
         {"sorted_token_ids", "int32",
          "vllm, sglang: the choices of each block of rows; their number where there is none"},
         {"expert_ids", "(blocks,) int32", "vllm, sglang: the expert of each block, -1 for none"},
         {"num_tokens_post_padded", "(1,) int32", "vllm: rows of all blocks"},
         {"num_tokens_post_pad", "(1,) int32", "sglang: the same"},
         {"grouped_layout", "int32",
          "deepgemm: the group of each row, -1 for padding; deepgemm-psum: the end of each group"},
         {"masked_m", "(groups,) int32", "deepgemm-masked: the rows of each group"},
         {"tokens_per_expert", "(groups,) int32", "megablocks: the rows of each expert"},
         {"bins", "(groups,) int32", "megablocks: the end of each expert's rows"},
         {"padded_bins", "(groups,) int32", "megablocks: the same with padding"},
         {"indices", "(rows,) int32", "megablocks: the choice of each row"},
         {"bin_ids", "(rows,) int32", "megablocks: the expert of each row"},
         {"offsets", "(rows of blocks + 1,) int32", "megablocks: the first block of each row of blocks"},
         {"column_indices", "(blocks,) int16", "megablocks: the column of each block"},
         {"row_indices", "(blocks,) int16", "megablocks: its row"},
         {"column_indices_t", "(blocks,) int16", "megablocks: the row of each block, by column"},
         {"offsets_t", "(columns + 1,) int32", "megablocks: the first of these of each column"},
         {"block_offsets_t", "(blocks,) int32", "megablocks: their places in row_indices"}},
    .use = R"(with h5py.File("groups.h5") as f: a = {name: f[name][()] for name in f}
for g, t in zip(a["group_ids"][:a["num_tiles"]], a["m_tile_ids"]):
    begin = max(t * tm, a["group_offsets"][g])
    end = min((t + 1) * tm, a["group_offsets"][g + 1])
    out[begin:end] = lhs[begin:end] @ rhs[g])",
    .keys = R"(
groups | integer | groups | done
groups_wanted, start_group | integer | groups that are computed, and the first of them | where some are left out
m | integer | rows | of JAX's layout
rows_past_last_group | integer | rows after the last group, which belong to none | of JAX's layout
layout | string | the library's arrays | with another --layout
rows | integer | rows of all groups | with another --layout
align | integer | rows that each group is padded to a multiple of | with another --layout
padded_rows, padding | integer | rows with padding; of these, padding | with another --layout
padding_share | share or null | padding / padded_rows | with another --layout
alignments | table | the same groups with other padding | with another --layout, where align is above 1
  align | integer | rows that each group is padded to a multiple of
  padded_rows, padding | integer | rows with padding; of these, padding
  padding_share | share or null | padding / padded_rows
arrays | table | the arrays | with another --layout
  array | string | its name
  dtype | string | its element type
  shape | shape | its shape
tokens, experts, choices, no_expert | integer | as of 'ejk route' | with another --layout
empty_experts, largest_expert, largest_expert_index | integer | experts without rows; rows of the largest; which it is | with another --layout
expert_max_over_mean | number or null | largest / mean | with another --layout
ranks | integer | expert-parallel ranks | with --ranks
empty_ranks, largest_rank, largest_rank_index | integer | the same of ranks | with --ranks
rank_max_over_mean | number or null | largest / mean | with --ranks
tm | integer | rows of a tile | of JAX's layout
visit_empty_groups | boolean | whether empty groups get a step | of JAX's layout
num_tiles | integer | steps of the kernel | of JAX's layout
length | integer | entries of group_ids, and of m_tile_ids but for M = 0 | of JAX's layout
group_offsets, group_ids, m_tile_ids | shape | the shapes of the arrays | plan
tiles | section | cost of the tiles; empty where no group is computed | of JAX's layout
  tiles_visited | integer | tiles that the kernel computes
  tiles_of_empty_groups | integer | of them for empty groups | where empty groups are visited
  tiles_aligned | integer | tiles if each group began at one: the least
  tiles_of_rows | integer | tiles that all rows make
  rows_computed | integer | rows in the tiles that are computed
  rows_thrown_away | integer | of these, rows outside the group
  thrown_away_share | share or null | rows_thrown_away / rows_computed
  rows_of_other_groups, rows_of_no_group | integer | discarded rows of other groups, and of none
load | section | rows of the groups; empty where no group is computed | of JAX's layout
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
tile_sizes | table | the same groups in other tiles | of JAX's layout
  tm | integer | rows of a tile
  tiles_visited | integer | tiles that the kernel computes
  tiles_aligned | integer | tiles if each group began at one
  tiles_of_rows | integer | tiles that all rows make
  rows_computed | integer | rows in the tiles that are computed
  rows_thrown_away | integer | of these, rows outside the group
  thrown_away_share | share or null | rows_thrown_away / rows_computed
)",
    .arrays_of =
        [](std::string_view layout) {
          const auto is_named = [&](GroupLayout one) { return name_of(one) == layout; };
          const auto* const found =
              std::find_if(std::begin(kGroupLayouts), std::end(kGroupLayouts), is_named);
          return arrays_of(found == std::end(kGroupLayouts) ? std::nullopt : std::optional(*found), true);
        },
    .declare = declare_group_metadata,
};

}  // namespace ejk::app
