// ejk sparsity: cost of masks for a block-sparse kernel at several block sizes.
// tests: tests/cli/sparsity/
#include "ejk/sparsity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "commands.hpp"
#include "masks.hpp"

namespace ejk::app {

namespace {

struct SparsityWords {
  MaskOptions masks;
  std::vector<BlockShape> blocks;
  SparsityOptions how;
  KernelOptions kernel;
};

std::vector<BlockShape> read_blocks(const std::string& words) {
  std::vector<BlockShape> blocks;
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find(',', begin), words.size());
    blocks.push_back(read_block(words.substr(begin, end - begin)));
    begin = end + 1;
  }
  return blocks;
}

Outcome run(const SparsityWords& words, Job& job) {
  const Masks masks = job.phase(Phase::read, [&] { return resolve_masks(words.masks, job); });
  SparsityOptions how = words.how;
  how.kernel = words.kernel.kernel();
  const SparsityPlan plan =
      plan_of_masks(words.masks, masks, [&] { return SparsityPlan(masks.heads, words.blocks, how); });
  Report description = describe(plan);
  description.warnings = masks.warnings();
  const std::int64_t peak = plan.work_bytes();
  if (job.plan(std::move(description), peak)) return Outcome::passed;

  const auto progress = job.progress();
  const Sparsity sparsity = job.phase(Phase::compute, [&] {
    return plan.run(progress, std::max<std::int64_t>(job.budget.bytes() - peak, 1));
  });

  Report report;
  for (const std::string& remark : masks.remarks) report.add(Remark{remark});
  report.warnings = masks.warnings();
  append(report, describe(sparsity));
  job.deliver(std::move(report), {});
  return Outcome::passed;
}

Run declare_sparsity(OptionSet& set) {
  const auto words = std::make_shared<SparsityWords>();
  declare_masks(set, words->masks);
  add_word(set, "--blocks", words->blocks, read_blocks, "QxK,...",
           "sizes of blocks, such as 64x64,128x128\n"
           "Queries and keys. Blocks at the edge are padded with False, as mask-info --pad does.")
      .required();
  add_choice(set, "--by", words->how.measure,
             {{"pairs", SparsityMeasure::pairs}, {"metadata", SparsityMeasure::metadata}}, "WHAT",
             "measure of cost\n"
             "pairs: pairs computed, and --block-cost for each block. metadata: its bytes.");
  add_word(set, "--block-cost", words->how.block_cost, at_least(0), "PAIRS",
           fmt::format(
               "what visiting a block costs beside its pairs: {} by default\n"
               "The default is the latency of memory on an H100: some 480 cycles, of 8 pairs at a head size "
               "of 128 and the peak of bfloat16. For another kernel: its time for a block of few pairs, "
               "divided by that for a pair.",
               kPairsOfBlock));
  add_word(set, "--metadata-budget", words->how.metadata_budget, read_size, "SIZE",
           "bytes that the metadata may take, such as 1MiB\nSizes whose arrays do not fit are not chosen.");
  add_word(
      set, "--cp", words->how.ranks, at_least(1), "N",
      "work of N context-parallel ranks\n"
      "Queries are divided into N ranges (contiguous), 2 N ranges of which rank r has r and 2 N - 1 - r "
      "(zig-zag), and blocks of the first size, the heaviest first to the rank with the least "
      "(balanced); of one mask in square blocks, whose number N divides, also as torch's PTRR deals them (ptrr). Ranks receive the keys that their queries need and that are not at their positions.");
  declare_kernel(set, words->kernel);
  declare_picture(set);
  set_footer(set,
             "A kernel computes all pairs in the blocks that are not empty. Counts are sums\n"
             "over all heads. Metadata are the arrays that ejk mask-info --pad writes.");
  return [words](Job& job) { return run(*words, job); };
}

}  // namespace

extern const Command sparsity_command{
    .name = "sparsity",
    .group = "Masks",
    .summary = "block sizes side by side, and work of context-parallel ranks",
    .example = "ejk sparsity --mask 'causal & documents(cu.npy)' --blocks 64x64,128x128 --cp 4",
    .keys = R"(
shape | shape | heads, queries, keys
alignment | string | how queries and keys are aligned | where queries and keys differ in number
masks | table | the distinct masks | done
  mask | integer | its number
  heads | string | the heads that have it: 0-3, 7
  expression | string | the mask as an expression
pairs_allowed | integer | allowed pairs of a query and a key, of all heads | done
density | share | pairs_allowed / all pairs | done
sizes | table | the block sizes, in the order of --blocks; counts are sums over all heads
  block | shape | queries and keys of a block
  grid | shape | query blocks and key blocks of a head
  empty_blocks, partial_blocks, full_blocks | integer | blocks with no, some, only True elements | done
  block_sparsity | share | empty blocks / blocks | done
  pairs_allowed, pairs_computed | integer | allowed pairs of these queries; their pairs in visited blocks | done
  padding_pairs | integer | of these, pairs beyond the edge of the mask | done
  cost | number | pairs_computed, and block_cost for each block that is visited | done
  computed_per_allowed | number or null | pairs_computed / pairs_allowed | done
  distinct_partial_blocks | integer | partial blocks that differ from each other | done
  metadata_bytes | integer | bytes of the arrays that mask-info --pad writes, without is_dynamic_mask | done
  heaviest_row_head | integer | the head of the row of blocks with the most visited ones | done
  heaviest_row | integer | that row of blocks | done
  heaviest_row_blocks | integer | its visited blocks | done
  mean_row_blocks | number | visited blocks of a row, on average | done
  row_imbalance | number or null | heaviest_row_blocks / mean_row_blocks | done
  runs_on | boolean | whether the kernel takes blocks of this size | with --arch
  fits_budget | boolean | metadata_bytes are within it | with --metadata-budget
metadata_budget_bytes | integer | bytes that the metadata may take | with --metadata-budget
fewest_pairs_block | shape or null | the size with the fewest pairs_computed; null where none fits the budget | done
least_block | shape or null | the size of the least cost, or by metadata of the fewest bytes; null where none fits the budget | done
block_cost | integer | cost of visiting a block, in pairs: --block-cost | done
measure | string | pairs or metadata: the measure of --by | done
context_parallel | section | work of context-parallel ranks | with --cp
  block | shape | the block size that pairs computed are for: the first
  distributions | table | ways to distribute the queries
    distribution | string | contiguous, zig-zag, balanced or ptrr
    pairs_imbalance | number or null | pairs_allowed of the heaviest rank / the mean
    computed_imbalance | number or null | pairs_computed of the heaviest rank / the mean
    keys_received_max, keys_received | integer | keys_received of the rank that receives the most, and of all ranks
  ranks | table | the ranks under each distribution
    distribution | string | contiguous, zig-zag, balanced or ptrr
    rank | integer | the rank
    queries | integer | queries of its own
    pairs_allowed, pairs_computed | integer | allowed pairs of these queries; their pairs in visited blocks
    keys_held, keys_received | integer | keys of its own; keys that its queries need and another rank has
)",
    .declare = declare_sparsity,
};

}  // namespace ejk::app
