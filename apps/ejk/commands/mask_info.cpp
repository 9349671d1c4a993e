// ejk mask-info: the MaskInfo arrays of masks, and a sparsity report.
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

Output absent(const std::string& name, MaskInfoArray::Absent why) {
  using Absent = MaskInfoArray::Absent;
  return {name, nullptr,
          why == Absent::not_computable ? "only a single causal, local or chunked mask has one"
          : why == Absent::computed
              ? "a kernel computes a single causal, local or chunked mask; --no-computable writes it"
              : "no block is partial"};
}

std::vector<Output> outputs_of(const MaskInfo& info) {
  std::vector<Output> outputs;
  for (MaskInfoArray& array : arrays_of(info))
    outputs.push_back(array.elements ? Output{array.name, std::move(array.elements), {}}
                                     : absent(array.name, array.absent));
  return outputs;
}

std::vector<Output> outputs_of(const MaskInfoShare& share) {
  std::vector<Output> outputs;
  for (const MaskInfoShare::Array& array : share.arrays) {
    std::vector<OutputPart> parts;
    for (const MaskInfoShare::Part& part : array.parts) parts.push_back({part.box, part.elements});
    outputs.push_back(array.absent == MaskInfoArray::Absent::no
                          ? output_in_parts(array.name, array.type, std::move(parts))
                          : absent(array.name, array.absent));
  }
  return outputs;
}

// Memory and work of the plan on the ranks of the job.
struct PlannedWork {
  std::int64_t peak_bytes = 0;     // largest of all ranks
  std::int64_t pattern_bytes = 0;  // left for the partial blocks of this rank
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
  // A single process runs the plan; several ranks run their shares, and only rank 0 reports.
  MaskInfoShare share;
  job.phase(Phase::compute, [&] {
    if (job.comm.is_single())
      share.info = plan.run(progress, work.pattern_bytes);
    else
      share = plan.run_with(job.comm, progress, work.pattern_bytes);
  });

  Report report;
  for (const std::string& remark : masks.remarks) report.add(Remark{remark});
  if (share.info && share.info->mask_function)
    report.add(Remark{
        "mask_next and partial_mask_blocks are left out: a kernel computes a single causal, local or chunked "
        "mask from positions. --no-computable writes them."});
  report.warnings = masks.warnings();
  if (share.info) append(report, describe(*share.info));

  Array dynamic(DType::boolean, {});
  dynamic.elements<bool>()[0] = options.dynamic;
  std::vector<Output> outputs = job.comm.is_single() ? outputs_of(*share.info) : outputs_of(share);
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
