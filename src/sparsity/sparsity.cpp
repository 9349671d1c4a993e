// Comparison of block sizes. Each distinct mask is scanned once for each size. The arrays of mask-info are not
// built: block states and digests of partial blocks determine their sizes.
// tests: tests/sparsity/test_sparsity.cpp
#include "ejk/sparsity.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "blocks/plan.hpp"
#include "core/checked.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "mask/node.hpp"
#include "sparsity/context_parallel.hpp"

namespace ejk {

namespace blocks {

struct SizesPlan {
  std::vector<InfoPlan> sizes;  // of equal heads
  SparsityOptions options;

  const InfoPlan& first() const { return sizes.front(); }
};

}  // namespace blocks

namespace {

using blocks::InfoPlan;
using blocks::PatternTable;
using blocks::QueryRuns;
using blocks::Scan;

std::vector<std::int64_t> visited_blocks(const MaskSummary& summary) {
  const BlockStates& states = *summary.states;
  std::vector<std::int64_t> visited;
  for (std::int64_t i = 0; i < states.rows(); ++i) {
    const auto row = states.states(i);
    visited.push_back(std::ssize(row) - std::count(row.begin(), row.end(), std::uint8_t{0}));
  }
  return visited;
}

// Keys of the mask in the visited blocks of a row, without the padding of the last column.
std::int64_t visited_keys(const MaskSummary& s, BlockShape block, std::int64_t row, std::int64_t visited) {
  const std::int64_t columns = s.states->columns();
  const bool last = s.states->at(row, columns - 1) != 0;
  return visited * block.kv - (last ? columns * block.kv - s.kv_length : 0);
}

BlockSizeCost cost_of(const InfoPlan& size, const blocks::DistinctMasks& distinct,
                      const std::vector<Scan>& scans, std::int64_t patterns,
                      const std::vector<std::vector<std::int64_t>>& visited, std::int64_t block_cost) {
  BlockSizeCost cost;
  const BlockShape block = cost.block = size.block;
  const MaskSummary& first = scans.front().summary;
  cost.q_blocks = first.states->rows();
  cost.kv_blocks = first.states->columns();
  const std::int64_t heads = size.head_count();
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto u = static_cast<std::size_t>(distinct.of_head[static_cast<std::size_t>(h)]);
    const MaskSummary& s = scans[u].summary;
    cost.empty_blocks += s.empty_blocks;
    cost.partial_blocks += s.partial_blocks;
    cost.full_blocks += s.full_blocks;
    for (std::int64_t i = 0; i < cost.q_blocks; ++i) {
      const std::int64_t blocks = visited[u][static_cast<std::size_t>(i)];
      const std::int64_t queries = std::min(block.q, first.q_length - i * block.q);
      const std::int64_t computed = block.q * blocks * block.kv;
      cost.pairs_computed += computed;
      cost.padding_pairs += computed - queries * visited_keys(s, block, i, blocks);
      if (blocks > cost.heaviest_row_blocks)
        cost.heaviest_head = h, cost.heaviest_row = i, cost.heaviest_row_blocks = blocks;
    }
  }
  const auto visits = static_cast<double>(cost.partial_blocks + cost.full_blocks);
  cost.cost = static_cast<double>(cost.pairs_computed) + static_cast<double>(block_cost) * visits;
  cost.mean_row_blocks = visits / static_cast<double>(heads * cost.q_blocks);
  cost.distinct_partial_blocks = patterns;
  for (const PlannedArray& array : blocks::arrays_of(size, distinct, scans, patterns))
    cost.metadata_bytes += array.type.bytes();
  if (std::ssize(scans) * first.states->blocks() <= BlockSizeCost::kMostDrawn)
    for (std::size_t u = 0; u < scans.size(); ++u) {
      BlockPicture picture = blocks::picture_of(block, scans[u].summary);
      const std::string of = blocks::heads_with(distinct.of_head, static_cast<std::int64_t>(u));
      picture.title =
          fmt::format("{} blocks of mask {}, head{} {} (queries down, keys across)", to_string(block), u,
                      of.find_first_of(",-") == std::string::npos ? "" : "s", of);
      picture.subject = distinct.masks[u].text();
      picture.page_only = true;
      cost.pictures.push_back(std::move(picture));
    }
  return cost;
}

// The size of the least key, the first of equals, among those whose metadata fit.
template <class Key>
std::optional<std::size_t> least_of(const std::vector<BlockSizeCost>& sizes, const SparsityOptions& options,
                                    Key&& key) {
  std::optional<std::size_t> least;
  for (std::size_t s = 0; s < sizes.size(); ++s)
    if (!options.metadata_budget || sizes[s].metadata_bytes <= *options.metadata_budget)
      if (!least || key(sizes[s]) < key(sizes[*least])) least = s;
  return least;
}

std::vector<std::int64_t> computed_pairs(const QueryRuns& runs, BlockShape block,
                                         const std::vector<std::vector<std::int64_t>>& visited,
                                         const std::vector<std::int64_t>& head_mask) {
  std::vector<std::int64_t> pairs;
  for (std::size_t r = 0; r + 1 < runs.bounds.size(); ++r) {
    const auto row = static_cast<std::size_t>(runs.bounds[r] / block.q);
    std::int64_t blocks = 0;
    for (const std::int64_t u : head_mask) blocks += visited[static_cast<std::size_t>(u)][row];
    pairs.push_back((runs.bounds[r + 1] - runs.bounds[r]) * blocks * block.kv);
  }
  return pairs;
}

// From the scans of the first size.
std::vector<ContextParallel> parallel_loads(const blocks::SizesPlan& plan,
                                            const blocks::DistinctMasks& distinct,
                                            const std::vector<Scan>& scans,
                                            const std::vector<std::vector<std::int64_t>>& visited) {
  const InfoPlan& first = plan.first();
  const std::int64_t ranks = plan.options.ranks;
  QueryRuns runs(blocks::run_bounds(first.q_length(), first.block.q, ranks), first.kv_length());
  for (std::size_t u = 0; u < scans.size(); ++u) {
    const std::int64_t heads =
        std::count(distinct.of_head.begin(), distinct.of_head.end(), static_cast<std::int64_t>(u));
    blocks::add_scanned(runs, heads, distinct.masks[u], first.block, *scans[u].summary.states);
  }
  return blocks::rank_loads(runs, computed_pairs(runs, first.block, visited, distinct.of_head),
                            first.kv_length(), first.block, ranks, scans.size() == 1);
}

void choose(Sparsity& sparsity) {
  const bool by_pairs = sparsity.options.measure == SparsityMeasure::pairs;
  sparsity.least = least_of(sparsity.sizes, sparsity.options, [&](const BlockSizeCost& size) {
    const auto bytes = static_cast<double>(size.metadata_bytes);
    return by_pairs ? std::pair(size.cost, bytes) : std::pair(bytes, size.cost);
  });
  sparsity.fewest_pairs = least_of(sparsity.sizes, sparsity.options, [](const BlockSizeCost& size) {
    return std::pair(size.pairs_computed, size.metadata_bytes);
  });
}

ReportValue imbalance(const std::vector<RankLoad>& ranks, std::int64_t RankLoad::*pairs) {
  double most = 0, all = 0;
  for (const RankLoad& rank : ranks) {
    const auto own = static_cast<double>(rank.*pairs);
    most = std::max(most, own), all += own;
  }
  return ratio(most, all / static_cast<double>(ranks.size()));
}

void add_masks(Report& report, const Sparsity& sparsity) {
  Table table{"masks", "masks", {{"mask", "mask"}, {"heads", "heads"}, {"expression", "is"}}, {}};
  std::set<std::string> alignment;
  for (std::size_t u = 0; u < sparsity.masks.size(); ++u) {
    const auto number = static_cast<std::int64_t>(u);
    blocks::add_alignment(sparsity.masks[u].node(), alignment);
    table.rows.push_back(
        {number, blocks::heads_with(sparsity.head_mask, number), printable(sparsity.masks[u].text(), 1000)});
  }
  if (!alignment.empty()) report.add("alignment", "alignment", fmt::format("{}", fmt::join(alignment, "; ")));
  report.add(std::move(table));
}

void add_sizes(Report& report, const Sparsity& sparsity) {
  const SparsityOptions& options = sparsity.options;
  Table table{"sizes",
              sparsity.shape[0] == 1 ? "block sizes" : "block sizes, over all heads",
              {{"block", "block"},
               {"grid", "grid", Unit::none, true},
               {"empty_blocks", "empty", Unit::none, true},
               {"partial_blocks", "partial"},
               {"full_blocks", "full"},
               {"block_sparsity", "skipped", Unit::share},
               {"pairs_allowed", "allowed", Unit::none, true},
               {"pairs_computed", "computed", Unit::none, true},
               {"padding_pairs", "padding", Unit::none, true},
               {"cost", "cost", Unit::none, true},
               {"computed_per_allowed", "pairs per pair"},
               {"distinct_partial_blocks", "distinct"},
               {"metadata", "metadata", Unit::bytes},
               {"heaviest_row_head", "head", Unit::none, true},
               {"heaviest_row", "heaviest row", Unit::none, true},
               {"heaviest_row_blocks", "its blocks", Unit::none, true},
               {"mean_row_blocks", "mean row", Unit::none, true},
               {"row_imbalance", "row max /mean"}},
              {}};
  if (options.kernel)
    table.columns.push_back({"runs_on", fmt::format("runs on {}", name_of(options.kernel->arch))});
  if (options.metadata_budget) table.columns.push_back({"fits_budget", "fits"});
  const auto allowed = static_cast<double>(sparsity.pairs_allowed);
  for (const BlockSizeCost& s : sparsity.sizes) {
    const std::int64_t blocks = s.empty_blocks + s.partial_blocks + s.full_blocks;
    std::vector<ReportValue> row{Shape{s.block.q, s.block.kv},
                                 Shape{s.q_blocks, s.kv_blocks},
                                 s.empty_blocks,
                                 s.partial_blocks,
                                 s.full_blocks,
                                 ratio(static_cast<double>(s.empty_blocks), static_cast<double>(blocks)),
                                 sparsity.pairs_allowed,
                                 s.pairs_computed,
                                 s.padding_pairs,
                                 whole_number(s.cost),
                                 ratio(static_cast<double>(s.pairs_computed), allowed),
                                 s.distinct_partial_blocks,
                                 s.metadata_bytes,
                                 s.heaviest_head,
                                 s.heaviest_row,
                                 s.heaviest_row_blocks,
                                 s.mean_row_blocks,
                                 ratio(static_cast<double>(s.heaviest_row_blocks), s.mean_row_blocks)};
    if (options.kernel) row.emplace_back(fa4_refusal(*options.kernel, s.block, sparsity.shape[1]).empty());
    if (options.metadata_budget) row.emplace_back(s.metadata_bytes <= *options.metadata_budget);
    table.rows.push_back(std::move(row));
  }
  report.add(std::move(table));

  const auto block_of = [&](const std::optional<std::size_t>& size) {
    if (!size) return ReportValue();
    const BlockShape block = sparsity.sizes[*size].block;
    return ReportValue(Shape{block.q, block.kv});
  };
  if (options.metadata_budget)
    report.add("metadata_budget", "metadata may take", *options.metadata_budget, Unit::bytes);
  report.add("fewest_pairs_block", "fewest pairs", block_of(sparsity.fewest_pairs))
      .add("least_block",
           options.measure == SparsityMeasure::metadata
               ? "least metadata"
               : fmt::format("least with {} pairs a block", format_count(options.block_cost)),
           block_of(sparsity.least));
  report.add(JsonField{"measure", fmt::format("\"{}\"", name_of(options.measure))})
      .add(JsonField{"block_cost", fmt::format("{}", options.block_cost)});
  report.add(Remark{
      "Pairs per pair: pairs of a query and a key that a kernel computes, per pair that is allowed. They are "
      "fewest at small sizes: what each visited block costs beside them is counted apart."});
}

void add_ranks(Report& report, const Sparsity& sparsity) {
  Table distributions{"distributions",
                      "",
                      {{"distribution", "distribution"},
                       {"pairs_imbalance", "allowed max/mean"},
                       {"computed_imbalance", "computed max/mean"},
                       {"keys_received_max", "keys received, most by a rank"},
                       {"keys_received", "keys received, in all"}},
                      {}};
  Table ranks{"ranks",
              "ranks",
              {{"distribution", "distribution"},
               {"rank", "rank"},
               {"queries", "queries"},
               {"pairs_allowed", "pairs allowed"},
               {"pairs_computed", "pairs computed"},
               {"keys_held", "keys held"},
               {"keys_received", "keys received"}},
              {}};
  ranks.text_rows = 24;
  for (const ContextParallel& p : sparsity.parallel) {
    std::int64_t most = 0, all = 0, rank = 0;
    for (const RankLoad& load : p.ranks) {
      most = std::max(most, load.keys_received), all += load.keys_received;
      ranks.rows.push_back({std::string(name_of(p.distribution)), rank++, load.queries, load.pairs_allowed,
                            load.pairs_computed, load.keys_held, load.keys_received});
    }
    distributions.rows.push_back({std::string(name_of(p.distribution)),
                                  imbalance(p.ranks, &RankLoad::pairs_allowed),
                                  imbalance(p.ranks, &RankLoad::pairs_computed), most, all});
  }
  Report content;
  const BlockShape block = sparsity.sizes.front().block;
  content.add("block", "block", Shape{block.q, block.kv});
  content.add(std::move(distributions));
  content.add(std::move(ranks));
  report.add(Section{"context_parallel", fmt::format("{} context-parallel ranks", sparsity.options.ranks),
                     std::make_shared<Report>(std::move(content))});
}

}  // namespace

const char* name_of(SparsityMeasure measure) {
  return measure == SparsityMeasure::pairs ? "pairs" : "metadata";
}

const char* name_of(Distribution distribution) {
  static constexpr const char* kNames[] = {"contiguous", "zig-zag", "balanced", "ptrr"};
  return kNames[static_cast<std::size_t>(distribution)];
}

Sparsity measure_sparsity(const std::vector<Mask>& heads, const std::vector<BlockShape>& blocks,
                          const SparsityOptions& options, const BlockProgress& progress,
                          std::int64_t max_pattern_bytes) {
  return SparsityPlan(heads, blocks, options).run(progress, max_pattern_bytes);
}

const ContextParallel* Sparsity::find(Distribution distribution) const {
  const auto found = std::find_if(parallel.begin(), parallel.end(), [&](const ContextParallel& one) {
    return one.distribution == distribution;
  });
  return found == parallel.end() ? nullptr : &*found;
}

SparsityPlan::SparsityPlan(const std::vector<Mask>& heads, const std::vector<BlockShape>& blocks,
                           const SparsityOptions& options) {
  if (blocks.empty()) throw core::invalid("there is no block size: at least one is needed");
  auto plan = std::make_shared<blocks::SizesPlan>();
  plan->options = options;
  MaskInfoSettings settings;
  settings.pad = true;
  for (const BlockShape& block : blocks) {
    const InfoPlan& size = plan->sizes.emplace_back(
        blocks::checked(heads, block, Direction::forward, MaskInfoKind::fixed, settings));
    // Counts of pairs of all heads, with padding, fit 64 bits.
    element_count(Shape{size.head_count(), size.layout.q_blocks * block.q, size.layout.kv_blocks * block.kv});
  }
  if (options.kernel) fa4_tile(*options.kernel, blocks.front(), 1);  // its errors
  if (options.block_cost < 0) throw core::usage("a block does not cost {} pairs", options.block_cost);
  const std::int64_t queries = plan->first().q_length();
  if (options.ranks < 0) throw core::usage("{} is not a number of ranks", options.ranks);
  if (options.ranks > queries)
    throw core::usage("{} queries cannot be shared among {} ranks", queries, options.ranks);
  plan_ = std::move(plan);
}

std::int64_t SparsityPlan::work_bytes() const {
  constexpr std::int64_t kOfLine = 64;  // some numbers of each row and column of blocks
  const InfoPlan& first = plan_->first();
  const std::vector<Mask>& masks = first.known.masks;
  const bool in_order =
      std::any_of(masks.begin(), masks.end(), [](const Mask& mask) { return !mask.node().random_access(); });
  std::int64_t most = 0;
  for (const InfoPlan& size : plan_->sizes) {
    const auto scan =
        blocks::scan_bytes(first.q_length(), first.kv_length(), size.block, blocks::Patterns::kept,
                           in_order ? blocks::Reading::in_order : blocks::Reading::any_order);
    std::int64_t bytes = scan.value_or(core::kMostBytes);
    for (const Mask& mask : masks)
      bytes = core::sum_of_bytes({bytes, blocks::held_blocks(mask, size.block).all,
                                  kOfLine * (size.layout.q_blocks + size.layout.kv_blocks)});
    most = std::max(most, bytes);
  }
  const auto ranks = plan_->options.ranks == 0 ? 0
                                               : blocks::rank_bytes(first.q_length(), first.kv_length(),
                                                                    first.block.q, plan_->options.ranks);
  return core::sum_of_bytes({most, ranks.value_or(core::kMostBytes)});
}

Sparsity SparsityPlan::run(const BlockProgress& progress, std::int64_t max_pattern_bytes) const {
  const InfoPlan& first = plan_->first();
  const blocks::DistinctMasks distinct = blocks::distinct_masks(first.heads, single_process());
  std::int64_t blocks_done = 0, all_blocks = 0;
  for (const InfoPlan& size : plan_->sizes)
    all_blocks += std::ssize(distinct.masks) * size.layout.q_blocks * size.layout.kv_blocks;
  std::function<void(std::int64_t)> counter;
  if (progress) counter = [&](std::int64_t done) { progress(blocks_done += done, all_blocks); };

  Sparsity result;
  result.options = plan_->options;
  result.shape = {first.head_count(), first.q_length(), first.kv_length()};
  for (const InfoPlan& size : plan_->sizes) {
    PatternTable table =
        PatternTable::of_digests(size.block, max_pattern_bytes, blocks::Digester::drawn_seed());
    std::vector<Scan> scans;  // of each mask
    std::vector<std::vector<std::int64_t>> visited;
    for (const Mask& mask : distinct.masks) {
      scans.push_back(blocks::scan_mask(mask, size.block, &table, counter));
      visited.push_back(visited_blocks(scans.back().summary));
    }
    result.sizes.push_back(cost_of(size, distinct, scans, table.size(), visited, plan_->options.block_cost));
    if (result.sizes.size() > 1) continue;
    for (const std::int64_t u : distinct.of_head)
      result.pairs_allowed += scans[static_cast<std::size_t>(u)].summary.true_elements;
    if (plan_->options.ranks > 0) result.parallel = parallel_loads(*plan_, distinct, scans, visited);
  }
  choose(result);
  result.masks = distinct.masks;
  result.head_mask = distinct.of_head;
  return result;
}

Report describe(const SparsityPlan& plan) {
  const InfoPlan& first = plan.plan_->first();
  Report report;
  report.add("shape", "heads, queries, keys", Shape{first.head_count(), first.q_length(), first.kv_length()});
  Table table{"sizes", "block sizes", {{"block", "block"}, {"grid", "grid"}}, {}};
  for (const InfoPlan& size : plan.plan_->sizes)
    table.rows.push_back(
        {Shape{size.block.q, size.block.kv}, Shape{size.layout.q_blocks, size.layout.kv_blocks}});
  return std::move(report.add(std::move(table)));
}

Report describe(const Sparsity& sparsity) {
  Report report;
  const double pairs = static_cast<double>(sparsity.shape[0]) * static_cast<double>(sparsity.shape[1]) *
                       static_cast<double>(sparsity.shape[2]);
  report.add("shape", "heads, queries, keys", sparsity.shape);
  add_masks(report, sparsity);
  report.add("pairs_allowed", "pairs allowed", sparsity.pairs_allowed, Unit::count);
  report.add("density", "of all pairs", ratio(static_cast<double>(sparsity.pairs_allowed), pairs),
             Unit::share);
  add_sizes(report, sparsity);
  if (!sparsity.parallel.empty()) add_ranks(report, sparsity);
  std::int64_t drawn = 0;
  for (const BlockSizeCost& size : sparsity.sizes)
    for (BlockPicture picture : size.pictures) {
      if (drawn == kMostPictures) break;
      picture.key = fmt::format("picture_{}", drawn++);
      report.add(std::move(picture));
    }
  report.pictures_left_out = std::ssize(sparsity.sizes) * std::ssize(sparsity.masks) - drawn;
  return report;
}

}  // namespace ejk
