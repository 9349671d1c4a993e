// ejk mask-info: the MaskInfo arrays of masks, and a report of how sparse they are.
//
// tests: tests/cli/mask-info/
#include "ejk/mask_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "commands.hpp"
#include "masks.hpp"

namespace ejk::app {

namespace {

struct MaskInfoOptions {
  MaskOptions masks;
  BlockShape block;
  bool dkv = false;
  bool dynamic = false;
  std::int64_t head_shards = 1;
  std::int64_t q_seq_shards = 1;
  bool no_shrink_grid = false;
  bool no_downcast = false;
  bool pad = false;
  bool no_computable = false;
};

MaskInfoPlan planned(const MaskInfoOptions& options, const Masks& masks, const MaskInfoSettings& how) {
  try {
    return {masks.heads, options.block, options.dkv ? Direction::dkv : Direction::forward,
            options.dynamic ? MaskInfoKind::dynamic : MaskInfoKind::fixed, how};
  } catch (Error& error) {
    error.at(masks.name);
    // Lengths that were typed, and no input's.
    if (!options.masks.shape.empty())
      throw Error(Error::Kind::usage, error.message(), error.code()).hint(error.hint());
    throw;
  }
}

Answer run(const MaskInfoOptions& options, Job& job) {
  const auto yes_no = [](bool value) { return value ? "true" : "false"; };
  job.note_setting("block", fmt::format("{}x{}", options.block.q, options.block.kv));
  job.note_setting("dkv", yes_no(options.dkv));
  job.note_setting("dynamic", yes_no(options.dynamic));
  job.note_setting("head_shards", fmt::format("{}", options.head_shards));
  job.note_setting("q_seq_shards", fmt::format("{}", options.q_seq_shards));
  job.note_setting("shrink_grid", yes_no(!options.no_shrink_grid));
  job.note_setting("downcast", yes_no(!options.no_downcast));
  job.note_setting("pad", yes_no(options.pad));
  job.note_setting("computable", yes_no(!options.no_computable));

  const Masks masks = job.phase(Job::Phase::read, [&] { return resolve_masks(options.masks, job); });
  job.note_setting("shape", fmt::format("{}x{}x{}", masks.head_count(), masks.q_length, masks.kv_length));
  MaskInfoSettings how;
  how.head_shards = options.head_shards;
  how.q_seq_shards = options.q_seq_shards;
  how.shrink_grid = !options.no_shrink_grid;
  how.downcast = !options.no_downcast;
  how.pad = options.pad;
  how.computable = !options.no_computable;
  const MaskInfoPlan plan = planned(options, masks, how);
  Report description = describe(plan);
  description.warnings = masks.warnings;
  if (job.plan(std::move(description), plan.work_bytes())) return Answer::yes;

  const std::int64_t pattern_bytes = std::max<std::int64_t>(job.max_memory() - plan.work_bytes(), 1);
  const auto progress = job.progress();
  const MaskInfo info = job.phase(Job::Phase::compute, [&] { return plan.run(progress, pattern_bytes); });

  Report report;
  for (const std::string& remark : masks.remarks) report.add(Remark{remark});
  if (info.mask_function)
    report.add(Remark{
        "mask_next and partial_mask_blocks are left out: a kernel computes a single causal, local or chunked "
        "mask from positions. --no-computable writes them."});
  Report sparsity = describe(info);
  report.warnings = masks.warnings;
  std::move(sparsity.warnings.begin(), sparsity.warnings.end(), std::back_inserter(report.warnings));
  for (Report::Item& item : sparsity.items) report.add(std::move(item));

  const std::string no_partial = info.mask_function
                                     ? "a kernel computes a single causal, local or chunked mask; "
                                       "--no-computable writes it"
                                     : "no block is partial";
  Array dynamic(DType::boolean, {});
  dynamic.elements<bool>()[0] = info.is_dynamic_mask;
  const auto of = [](const Array& array) { return make_source(array.view()); };
  job.deliver(std::move(report), {{"data_next", of(info.data_next), {}},
                                  {"mask_next", info.mask_next ? of(*info.mask_next) : nullptr, no_partial},
                                  {"block_mask", of(info.block_mask), {}},
                                  {"partial_mask_blocks", info.partial_mask_blocks, no_partial},
                                  {"q_sequence", info.q_sequence ? of(*info.q_sequence) : nullptr,
                                   "only a single causal, local or chunked mask has one"},
                                  {"is_dynamic_mask", of(dynamic), {}}});
  return Answer::yes;
}

}  // namespace

Run mask_info(CLI::App& app) {
  const auto options = std::make_shared<MaskInfoOptions>();
  declare_masks(app, options->masks);
  add_word(
      app, "--block", options->block,
      [](const std::string& word) {
        const Shape lengths = read_lengths(word, 2, 2, "QxK");
        return BlockShape{lengths[0], lengths[1]};
      },
      "QxK", "queries and keys of a block, such as 128x128")
      .required();
  add_flag(app, "--dkv", options->dkv,
           "for the backward pass of keys and values\n"
           "data_next then names query blocks, and partial blocks are transposed.");
  add_flag(app, "--dynamic", options->dynamic,
           "keep every block of every head\nNothing is merged or shrunk: for masks that change at run time.");
  const auto at_least_one = [](const std::string& word) { return read_integer(word, 1); };
  add_word(app, "--head-shards", options->head_shards, at_least_one, "N", "devices that share the heads");
  add_word(app, "--q-seq-shards", options->q_seq_shards, at_least_one, "N", "devices that share the queries");
  add_flag(app, "--no-shrink-grid", options->no_shrink_grid,
           "keep empty blocks in the grid\nOtherwise they go where all heads have the same mask.");
  add_flag(app, "--no-downcast", options->no_downcast,
           "index arrays in int32\nOtherwise each in the narrowest of int8, int16 and int32.");
  add_flag(app, "--pad", options->pad,
           "fill up lengths that blocks do not divide with False\nDensities count the true area alone.");
  add_flag(
      app, "--no-computable", options->no_computable,
      "write a computable mask's blocks as well\nA kernel computes a single causal, local or chunked mask "
      "from positions; its mask_next and partial_mask_blocks are left out otherwise.");
  set_footer(app, kMaskHelp);
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace ejk::app
