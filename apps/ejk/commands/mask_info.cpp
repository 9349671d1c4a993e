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

// Of a communicator each rank gives what it holds; one process gives what it has, as it is.
std::vector<Output> outputs_of(const MaskInfoShare& share, const Job& job) {
  const auto has = [&](const std::string& name) {
    return std::any_of(share.arrays.begin(), share.arrays.end(),
                       [&](const PlannedArray& array) { return array.name == name; });
  };
  const std::string no_partial = has("q_sequence")
                                     ? "a kernel computes a single causal, local or chunked mask; "
                                       "--no-computable writes it"
                                     : "no block is partial";
  const auto reason = [&](const std::string& name) {
    return name == "q_sequence" ? "only a single causal, local or chunked mask has one" : no_partial;
  };
  std::vector<Output> outputs;
  for (const char* name : {"data_next", "mask_next", "block_mask", "partial_mask_blocks", "q_sequence"}) {
    std::vector<OutputPart> parts;
    for (const MaskInfoShare::Part& part : share.parts)
      if (part.array == name) parts.push_back({part.box, part.elements});
    if (!has(name)) {
      outputs.push_back({name, nullptr, reason(name)});
    } else if (job.comm.is_single()) {
      outputs.push_back({name, parts.front().elements, {}});
    } else {
      const auto array = std::find_if(share.arrays.begin(), share.arrays.end(),
                                      [&](const PlannedArray& planned) { return planned.name == name; });
      outputs.push_back(output_in_parts(name, array->type, std::move(parts)));
    }
  }
  return outputs;
}

// What the plan takes, by the ranks of the job.
struct PlannedWork {
  std::int64_t peak_bytes = 0;     // of the rank that takes most
  std::int64_t pattern_bytes = 0;  // that are left for the partial blocks that this rank finds
  Division division;
};

PlannedWork planned_work(const MaskInfoPlan& plan, const Job& job) {
  PlannedWork work;
  work.division = [plan](std::int64_t ranks) { return plan.shares(ranks); };
  std::int64_t own = work.peak_bytes = plan.work_bytes();
  if (!job.comm.is_single()) {
    const std::vector<RankWork> shares = plan.shares(job.comm.size());
    own = shares[static_cast<std::size_t>(job.comm.rank())].peak_bytes;
    for (const RankWork& share : shares) work.peak_bytes = std::max(work.peak_bytes, share.peak_bytes);
  }
  work.pattern_bytes = std::max<std::int64_t>(job.budget.bytes() - own, 1);
  return work;
}

Outcome run(const MaskInfoOptions& options, Job& job) {
  const Masks masks = job.phase(Phase::read, [&] { return resolve_masks(options.masks, job); });
  job.provenance.record("shape",
                        fmt::format("{}x{}x{}", masks.head_count(), masks.q_length, masks.kv_length));
  const MaskInfoPlan plan = plan_of_masks(options.masks, masks, [&] {
    return MaskInfoPlan(masks.heads, options.block, options.dkv ? Direction::dkv : Direction::forward,
                        options.dynamic ? MaskInfoKind::dynamic : MaskInfoKind::fixed, options.how);
  });
  Report description = describe(plan);
  description.warnings = masks.warnings();
  const PlannedWork work = planned_work(plan, job);
  if (job.plan(std::move(description), work.peak_bytes, work.division, CostUnit::bytes))
    return Outcome::passed;

  const auto progress = job.progress();
  const MaskInfoShare share =
      job.phase(Phase::compute, [&] { return plan.run_with(job.comm, progress, work.pattern_bytes); });

  Report report;
  for (const std::string& remark : masks.remarks) report.add(Remark{remark});
  if (share.info && share.info->mask_function)
    report.add(Remark{
        "mask_next and partial_mask_blocks are left out: a kernel computes a single causal, local or chunked "
        "mask from positions. --no-computable writes them."});
  report.warnings = masks.warnings();
  if (share.info) append(report, describe(*share.info));  // rank 0's report alone is shown

  Array dynamic(DType::boolean, {});
  dynamic.elements<bool>()[0] = options.dynamic;
  std::vector<Output> outputs = outputs_of(share, job);
  outputs.push_back({"is_dynamic_mask", make_source(dynamic.view()), {}});
  job.deliver(std::move(report), outputs);
  return Outcome::passed;
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
      "write a computable mask's blocks as well\nA kernel computes a single causal or local mask, or a chunked one "
      "without an offset, from positions; its mask_next and partial_mask_blocks are left out otherwise.",
      false)
      .recorded("computable");
  declare_picture(set);
  set_footer(set, kMaskHelp);
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace ejk::app
