// Masks of all problems, and their blocks. A shared mask is scanned once. Time: some operations a block, and
// reading partial blocks; memory: a byte for each block of every distinct mask.
// tests: tests/attention/test_attention.cpp

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "attention/plan.hpp"
#include "blocks/scan.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"

namespace ejk::attn {

namespace {

// What holds for query heads with a sink, and for those without.
std::string by_sinks(const RowEnds& ends, const std::string& with, const std::string& without) {
  const auto none = std::count(ends.sinks.begin(), ends.sinks.end(), kNoSink);
  if (none == std::ssize(ends.sinks) || with == without) return without;
  return none == 0 ? with : fmt::format("{} (in heads without a sink {})", with, without);
}

std::vector<bool> attending(std::int64_t length, std::int64_t others,
                            const std::vector<IndexRange>* without) {
  std::vector<bool> flags(static_cast<std::size_t>(length), others > 0);
  if (!without) return flags;
  for (const IndexRange& range : *without)
    std::fill(flags.begin() + range.begin, flags.begin() + range.end, false);
  return flags;
}

std::shared_ptr<const ArraySource> ids_of_entry(const std::shared_ptr<const ArraySource>& ids,
                                                std::int64_t entry, std::int64_t begin, std::int64_t length) {
  const auto fill = [=](std::span<const std::int64_t> start, std::span<const std::int64_t> count, void* out) {
    if (ids->shape().size() == 2)
      ids->read(Shape{entry, begin + start[0]}, Shape{1, count[0]}, out);
    else
      ids->read(Shape{begin + start[0]}, Shape{count[0]}, out);
  };
  return generated_source({ids->dtype(), {length}}, ids->name(), fill, ArrayAccess(ids->access().order));
}

std::int64_t computed_pairs(const MaskSummary& summary, BlockShape block) {
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < summary.states->rows(); ++i) {
    std::int64_t k = summary.states->run(i).begin * block.kv;
    for (const std::uint8_t state : summary.states->states(i)) {
      if (state != 0)
        pairs +=
            std::min(block.q, summary.q_length - i * block.q) * std::min(block.kv, summary.kv_length - k);
      k += block.kv;
    }
  }
  return pairs;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

HeadMasks segments_of(const std::shared_ptr<const CheckedArguments>& setup,
                      const AttentionSettings& options) {
  const auto q_ids = options.q_segment_ids;
  const auto kv_ids = options.kv_segment_ids ? options.kv_segment_ids : q_ids;
  HeadMasks part;
  part.batch = setup->shape.entries;
  part.same_for_heads = true;
  part.name = q_ids->name();
  part.mask = [setup, q_ids, kv_ids](std::int64_t entry, std::int64_t, std::int64_t q, std::int64_t kv) {
    const auto e = static_cast<std::size_t>(entry);
    const bool packed = setup->packed();
    return segments_mask(*ids_of_entry(q_ids, entry, packed ? setup->q_offsets[e] : 0, q),
                         *ids_of_entry(kv_ids, entry, packed ? setup->kv_offsets[e] : 0, kv));
  };
  return part;
}

}  // namespace

MaskSet masks_of(const CheckedArguments& setup, const AttentionSettings& settings) {
  std::vector<HeadMasks> parts = settings.masks;
  const auto own = std::make_shared<const CheckedArguments>(setup);  // sets may outlive their plan
  if (settings.q_segment_ids) parts.push_back(segments_of(own, settings));
  const auto lengths = [own](std::int64_t entry) {
    return MaskSet::Lengths{own->q_length(entry), own->kv_length(entry)};
  };
  return {std::move(parts), setup.shape.entries, setup.shape.heads, lengths,
          setup.packed() ? MaskSet::Entries::packed : MaskSet::Entries::padded};
}

MaskPlan::MaskPlan(const CheckedArguments& setup, const MaskSet& masks, Communicator& comm) {
  const auto begin = std::chrono::steady_clock::now();
  entries_ = masks.distinct_entries();
  heads_ = masks.distinct_heads();
  if (!masks.empty() && setup.problems() > 0) scan(setup, masks.join(), comm);
  count(setup);
  work_.mask_seconds = seconds_since(begin);
}

MaskPlan::MaskPlan(const CheckedArguments& setup, JoinedMasks masks)
    : entries_(masks.entries), heads_(masks.heads) {
  scan(setup, std::move(masks), single_process());
  count(setup);
}

void MaskPlan::scan(const CheckedArguments& setup, JoinedMasks joined, Communicator& comm) {
  tiles_.resize(joined.masks.size());
  of_entry_ = std::move(joined.of_entry);
  bool random_access = true, stored = false;
  double elements = 0;  // of all masks
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    const auto& mask = tiles_[t].mask = std::move(joined.masks[t]);
    if (!mask) continue;
    elements += static_cast<double>(mask->q_length()) * static_cast<double>(mask->kv_length());
    random_access = random_access && mask->node().random_access();
    stored = stored || mask->node().stored_bytes() > 0;
  }
  const auto scan_one = [&](std::int64_t t) {
    MaskTiles& tiles = tiles_[static_cast<std::size_t>(t)];
    if (!tiles.mask) return;
    // What is computed costs less than messages.
    Communicator& readers = tiles.mask->node().stored_bytes() > 0 ? comm : single_process();
    tiles.summary = blocks::scan_mask(*tiles.mask, setup.block, nullptr, {}, readers).summary;
    tiles.computed_pairs = computed_pairs(tiles.summary, setup.block);
  };
  // One mask is read by all threads, many are dealt out to them.
  const std::int64_t count = std::ssize(tiles_);
  if (random_access && count > 1 && (comm.is_single() || !stored))
    core::parallel_for(count, elements / 8, scan_one);
  else
    for (std::int64_t t = 0; t < count; ++t) scan_one(t);
}

void MaskPlan::count(const CheckedArguments& setup) {
  AttentionWork& w = work_;
  w.problems = setup.problems();
  w.distinct_masks = std::ssize(tiles_);
  w.block = setup.block;
  const RowEnds& ends = setup.ends;
  w.without_key = fmt::format(
      "results are {}, their lse is {}", by_sinks(ends, "0", ends.mean ? "the mean of all values" : "0"),
      by_sinks(ends, ends.lse.has_sink ? "the sink" : fmt::format("{:g}", ends.lse.empty),
               fmt::format("{:g}", ends.lse.empty)));
  for (std::int64_t e = 0; e < setup.shape.entries; ++e)
    for (std::int64_t h = 0; h < setup.shape.heads; ++h) {
      const Problem p = setup.problem(e, h);
      const std::int64_t pairs = p.q_length * p.kv_length;
      w.rows += p.q_length;
      w.dense_pairs += pairs;
      const MaskTiles* tiles = of(p);
      std::int64_t first = -1;
      if (pairs == 0) {
        w.rows_without_key += p.q_length;
        if (p.q_length > 0) first = 0;
      } else if (!tiles) {
        w.allowed_pairs += pairs;
        w.computed_pairs += pairs;
        w.full_blocks +=
            core::ceil_div(p.q_length, setup.block.q) * core::ceil_div(p.kv_length, setup.block.kv);
      } else {
        const MaskSummary& s = tiles->summary;
        if (p.q_length != p.kv_length) mask::add_alignment(tiles->mask->node(), w.alignment);
        w.allowed_pairs += s.true_elements;
        w.computed_pairs += tiles->computed_pairs;
        w.empty_blocks += s.empty_blocks;
        w.partial_blocks += s.partial_blocks;
        w.full_blocks += s.full_blocks;
        for (const IndexRange& range : s.rows_without_key) w.rows_without_key += range.count();
        if (!s.rows_without_key.empty()) first = s.rows_without_key.front().begin;
      }
      if (first >= 0 && w.first_row_without_key.empty()) w.first_row_without_key = {e, h, first};
    }
  const auto pairs = static_cast<double>(w.allowed_pairs);
  const auto d = static_cast<double>(setup.shape.head_size), dv = static_cast<double>(setup.shape.value_size);
  w.forward_flop = 2 * (d + dv) * pairs;
  if (setup.gradients) w.backward_flop = 2 * (3 * d + 2 * dv) * pairs;
}

void MaskPlan::fill(const MaskTiles& tiles, const mask::Rectangle& where, const mask::BitRows& out) {
  const MaskNode& node = tiles.mask->node();
  if (node.random_access()) return node.fill(where, out);
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  node.fill(where, out);
}

std::vector<bool> attending_queries(const Problem& p, const MaskPlan& plan) {
  const MaskTiles* tiles = plan.of(p);
  return attending(p.q_length, p.kv_length,
                   tiles && tiles->mask ? &tiles->summary.rows_without_key : nullptr);
}

std::vector<bool> attending_keys(const Problem& p, const MaskPlan& plan) {
  const MaskTiles* tiles = plan.of(p);
  return attending(p.kv_length, p.q_length,
                   tiles && tiles->mask ? &tiles->summary.keys_without_row : nullptr);
}

std::vector<bool> attending_keys(const CheckedArguments& setup, std::int64_t entry, std::int64_t kv_head,
                                 const MaskPlan& plan) {
  std::vector<bool> keys(static_cast<std::size_t>(setup.kv_length(entry)));
  for (std::int64_t h = kv_head * setup.group(); h < (kv_head + 1) * setup.group(); ++h) {
    const std::vector<bool> of_head = attending_keys(setup.problem(entry, h), plan);
    for (std::size_t j = 0; j < keys.size(); ++j) keys[j] = keys[j] || of_head[j];
  }
  return keys;
}

}  // namespace ejk::attn
