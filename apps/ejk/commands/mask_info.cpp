// ejk mask-info: the MaskInfo arrays of masks, and a report of how sparse they are.
//
// tests: tests/cli/mask-info/
#include "ejk/mask_info.hpp"

#include <fmt/format.h>

#include <algorithm>
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
  MaskInfoSettings how;
};

Answer run(const MaskInfoOptions& options, Job& job) {
  const Masks masks = job.phase(Phase::read, [&] { return resolve_masks(options.masks, job); });
  job.provenance.record("shape",
                        fmt::format("{}x{}x{}", masks.head_count(), masks.q_length, masks.kv_length));
  const MaskInfoPlan plan = plan_of_masks(options.masks, masks, [&] {
    return MaskInfoPlan(masks.heads, options.block, options.dkv ? Direction::dkv : Direction::forward,
                        options.dynamic ? MaskInfoKind::dynamic : MaskInfoKind::fixed, options.how);
  });
  Report description = describe(plan);
  description.warnings = masks.warnings;
  if (job.plan(std::move(description), plan.work_bytes())) return Answer::yes;

  const std::int64_t pattern_bytes = std::max<std::int64_t>(job.budget.bytes() - plan.work_bytes(), 1);
  const auto progress = job.progress();
  const MaskInfo info = job.phase(Phase::compute, [&] { return plan.run(progress, pattern_bytes); });

  Report report;
  for (const std::string& remark : masks.remarks) report.add(Remark{remark});
  if (info.mask_function)
    report.add(Remark{
        "mask_next and partial_mask_blocks are left out: a kernel computes a single causal, local or chunked "
        "mask from positions. --no-computable writes them."});
  report.warnings = masks.warnings;
  append(report, describe(info));

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

Run mask_info(OptionSet& set) {
  const auto options = std::make_shared<MaskInfoOptions>();
  declare_masks(set, options->masks);
  add_word(set, "--block", options->block, read_block, "QxK", "queries and keys of a block, such as 128x128")
      .required()
      .recorded();
  add_flag(set, "--dkv", options->dkv,
           "for the backward pass of keys and values\n"
           "data_next then names query blocks, and partial blocks are transposed.")
      .recorded();
  add_flag(set, "--dynamic", options->dynamic,
           "keep every block of every head\nNothing is merged or shrunk: for masks that change at run time.")
      .recorded();
  add_word(set, "--head-shards", options->how.head_shards, at_least(1), "N", "devices that share the heads")
      .recorded();
  add_word(set, "--q-seq-shards", options->how.q_seq_shards, at_least(1), "N",
           "devices that share the queries")
      .recorded();
  add_flag(set, "--no-shrink-grid", options->how.shrink_grid,
           "keep empty blocks in the grid\nOtherwise they go where all heads have the same mask.", false)
      .recorded("shrink_grid");
  add_flag(set, "--no-downcast", options->how.downcast,
           "index arrays in int32\nOtherwise each in the narrowest of int8, int16 and int32.", false)
      .recorded("downcast");
  add_flag(set, "--pad", options->how.pad,
           "fill up lengths that blocks do not divide with False\nDensities count the true area alone.")
      .recorded();
  add_flag(
      set, "--no-computable", options->how.computable,
      "write a computable mask's blocks as well\nA kernel computes a single causal, local or chunked mask "
      "from positions; its mask_next and partial_mask_blocks are left out otherwise.",
      false)
      .recorded("computable");
  declare_picture(set);
  set_footer(set, kMaskHelp);
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace ejk::app
