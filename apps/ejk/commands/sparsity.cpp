// ejk sparsity: cost of masks for a block-sparse kernel at several block sizes.
// tests: tests/cli/sparsity/
#include "ejk/sparsity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "masks.hpp"

namespace ejk::app {

namespace {

struct SparsityWords {
  MaskOptions masks;
  std::vector<BlockShape> blocks;
  SparsityOptions how;
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
  const SparsityPlan plan =
      plan_of_masks(words.masks, masks, [&] { return SparsityPlan(masks.heads, words.blocks, words.how); });
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

}  // namespace

Run sparsity(OptionSet& set) {
  const auto words = std::make_shared<SparsityWords>();
  declare_masks(set, words->masks);
  add_word(
      set, "--blocks", words->blocks, read_blocks, "QxK,...",
      "sizes of blocks, such as 64x64,128x128\n"
      "Queries and keys. They need not divide the lengths: blocks at the edge are filled up with False, as "
      "mask-info --pad does, and counted whole.")
      .required();
  add_word(
      set, "--by", words->how.measure,
      [](const std::string& word) {
        constexpr SparsityMeasure measures[] = {SparsityMeasure::pairs, SparsityMeasure::metadata};
        return measures[read_choice(word, {"pairs", "metadata"})];
      },
      "WHAT",
      "what a size costs least by: pairs or metadata\n"
      "pairs (default): pairs computed, and --block-cost for each block. metadata: bytes of it. The other one "
      "decides between equals.");
  add_word(set, "--block-cost", words->how.block_cost, at_least(0), "PAIRS",
           fmt::format(
               "what visiting a block costs beside its pairs: {} by default\n"
               "In pairs that are computed meanwhile. The default is a read of memory that nothing hides "
               "on an H100: some 480 cycles, of 8 pairs at a head size of 128 and the peak of bfloat16. "
               "For another kernel: its time for a block of few pairs, divided by that for a pair. 0 counts "
               "pairs alone.",
               kPairsOfBlock));
  add_word(set, "--metadata-budget", words->how.metadata_budget, read_size, "SIZE",
           "bytes that the metadata may take, such as 1MiB\n"
           "A row says whether the arrays of mask-info fit; of the sizes that do, one costs least.");
  add_word(set, "--cp", words->how.ranks, at_least(1), "N",
           "what N context-parallel ranks have to do\n"
           "Queries are shared out in N runs (contiguous), in 2 N runs of which rank r has r and 2 N - 1 - r "
           "(zig-zag), and in blocks of the first size, the heaviest first to the rank with the least "
           "(balanced). Ranks hold the keys at the places of their queries and receive the others that they "
           "see.");
  declare_picture(set);
  set_footer(set,
             std::string("A kernel visits the blocks that are not empty and computes all pairs in them,\n"
                         "of which the masks allow some. Counts are sums over all heads. The metadata are\n"
                         "the arrays that ejk mask-info --pad writes at that size.\n\n") +
                 kMaskHelp);
  return [words](Job& job) { return run(*words, job); };
}

}  // namespace ejk::app
