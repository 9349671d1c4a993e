// The procedure (Q queries, K keys, H heads; block bq × bk; all of it for static masks):
//
// 1. Equal masks are processed once, in order of first appearance over the heads.
// 2. The state of each block: 0 empty, 1 partial, 2 full.
// 3. The index arrays have one row a head shard if every shard holds a single mask, else one a head.
// 4. Partial blocks are numbered by first appearance over the distinct masks, row by row of blocks; equal ones
//    share a number. There is one table for all heads and shards; without any partial block neither the table
//    nor mask_next exists.
// 5. In each slab (head shard × query shard), in the order of the kernel's walk (forward: row, query block, key
//    block; dkv: key block, row, query block; last fastest), data_next is the coordinate of the first
//    non-empty block at or after a position and mask_next the number of the first partial one; past the last
//    they wrap around to the slab's first; 0 where the slab has none. Coordinates of query blocks count
//    within the shard.
// 6. Shrinking, with one distinct mask only: the empty blocks of each row (forward; the rest moves left) or
//    column (dkv; the rest moves down) are left out, per query shard; shards are then extended to the widest.
// 7. A single computable mask keeps no partial blocks and no mask_next: q_sequence and the mask function do.
// 8. Index arrays are narrowed to what their largest value needs.
//
// Dynamic masks skip 1, 3 and 4 to 7: every block is kept and every index says what is there and nothing
// more.
// tests: tests/blocks/test_mask_info.cpp
#include "ejk/mask_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "blocks/index_arrays.hpp"
#include "blocks/plan.hpp"
#include "blocks/scan.hpp"
#include "core/require.hpp"
#include "mask/node.hpp"

namespace ejk {

namespace {

using blocks::BandScan;
using blocks::IndexArrays;
using blocks::InfoPlan;
using blocks::Layout;
using blocks::PatternTable;
using blocks::QueryPartition;
using blocks::Scan;

// Progress over several scans, called from one thread at a time.
class Progress {
 public:
  Progress(const BlockProgress& report, std::int64_t all) : report_(report), all_(all) {}
  std::function<void(std::int64_t)> counter() {
    if (!report_) return {};
    return [this](std::int64_t blocks) { report_(done_ += blocks, all_); };
  }

 private:
  const BlockProgress& report_;
  std::int64_t all_;
  std::int64_t done_ = 0;
};

// What a plan gives, before there are arrays.
MaskInfo begun(const InfoPlan& plan) {
  MaskInfo info;
  info.direction = plan.direction;
  info.block = plan.block;
  info.settings = plan.settings;
  info.is_dynamic_mask = plan.is_dynamic();
  return info;
}

// What rank 0 has made, as all ranks see it; its index arrays are its parts.
MaskInfoShare begun_share(std::optional<MaskInfo> made, Communicator& comm) {
  MaskInfoShare share;
  share.info = std::move(made);
  RankMessage types;
  if (share.info) {
    MaskInfo& info = *share.info;
    share.arrays = blocks::arrays_of(info);
    types.put(std::ssize(share.arrays));
    for (const PlannedArray& array : share.arrays)
      types.put_text(array.name).put(array.type.dtype).put_all(array.type.shape);
    const auto hold = [&](const char* name, const Array& array) {
      share.parts.push_back({name, whole_box(array.shape()), make_source(array.view(), name)});
    };
    hold("data_next", info.data_next);
    if (info.mask_next) hold("mask_next", *info.mask_next);
    hold("block_mask", info.block_mask);
    if (info.q_sequence) hold("q_sequence", *info.q_sequence);
  }
  types = RankMessage(comm.broadcast(types.bytes()));
  if (share.info) return share;
  for (auto n = types.take<std::ptrdiff_t>(); n > 0; --n) {
    std::string name = types.take_text();
    const auto dtype = types.take<DType>();
    share.arrays.push_back({std::move(name), {dtype, types.take_all<std::int64_t>()}});
  }
  return share;
}

bool has_blocks(const MaskInfoShare& share) {
  return std::any_of(share.arrays.begin(), share.arrays.end(),
                     [](const PlannedArray& array) { return array.name == "partial_mask_blocks"; });
}

// What this rank finds in its rows of blocks of each mask; nothing of a mask of which it has none.
std::vector<std::optional<BandScan>> scan_shares(const std::vector<Mask>& masks, const InfoPlan& plan,
                                                 const QueryPartition& shares, PatternTable* table,
                                                 const BlockProgress& report, const Communicator& comm) {
  std::vector<IndexRange> rows;
  std::int64_t blocks = 0;
  for (std::int64_t u = 0; u < std::ssize(masks); ++u) {
    rows.push_back(shares.rows(comm.rank(), u, plan.block));
    blocks += (rows.back().end - rows.back().begin) * plan.layout.kv_blocks;
  }
  Progress progress(report, blocks);
  std::vector<std::optional<BandScan>> found(masks.size());
  for (std::size_t u = 0; u < masks.size(); ++u)
    if (rows[u].begin < rows[u].end)
      found[u] = blocks::scan_band(masks[u], plan.block, rows[u], table, progress.counter());
  return found;
}

// On rank 0 the scans of all masks.
std::vector<Scan> joined_scans(const std::vector<Mask>& masks, const InfoPlan& plan,
                               std::vector<std::optional<BandScan>> found,
                               const blocks::RankPatterns* patterns, Communicator& comm) {
  std::vector<Scan> scans;
  for (std::size_t u = 0; u < masks.size(); ++u)
    if (auto scan = blocks::joined(masks[u], plan.block, std::move(found[u]), patterns, comm))
      scans.push_back(std::move(*scan));
  return scans;
}

MaskInfo fixed_info(const InfoPlan& plan, const BlockProgress& report, std::int64_t max_pattern_bytes) {
  // 1. Distinct masks.
  blocks::DistinctMasks distinct = blocks::distinct_masks(plan.heads, single_process());

  // 2. and 4. States and partial blocks.
  const auto table = std::make_shared<PatternTable>(plan.block, max_pattern_bytes);
  Progress progress(report, plan.layout.grid() * static_cast<std::int64_t>(distinct.masks.size()));
  std::vector<Scan> scans;
  for (const Mask& m : distinct.masks)
    scans.push_back(blocks::scan_mask(m, plan.block, table.get(), progress.counter()));
  return put_together(plan, std::move(distinct), std::move(scans),
                      blocks::pattern_source(table, plan.direction));
}

// The same by several ranks. Ids go by ranks, which have the rows of blocks in the order of the walk, so they are the
// same as those of one process, and a rank's partial blocks are a run of them.
MaskInfoShare fixed_share(const InfoPlan& plan, const BlockProgress& report, std::int64_t max_pattern_bytes,
                          Communicator& comm) {
  blocks::DistinctMasks distinct = blocks::distinct_masks(plan.heads, comm);
  const auto table = std::make_shared<PatternTable>(plan.block, max_pattern_bytes);
  const QueryPartition shares = plan.query_partition(distinct.masks, comm.size());
  auto found = scan_shares(distinct.masks, plan, shares, table.get(), report, comm);
  blocks::RankPatterns patterns = blocks::number_patterns(*table, comm);
  std::vector<Scan> scans = joined_scans(distinct.masks, plan, std::move(found), &patterns, comm);

  const ArrayType type = blocks::blocks_type(plan, patterns.count);
  std::optional<MaskInfo> info;
  if (comm.is_first())
    info = put_together(plan, std::move(distinct), std::move(scans), blocks::type_alone(type));
  MaskInfoShare share = begun_share(std::move(info), comm);
  const std::int64_t own = std::ssize(patterns.own_here);
  if (has_blocks(share) && own > 0)
    share.parts.push_back({"partial_mask_blocks",
                           {{patterns.own.begin, 0, 0}, {own, type.shape[1], type.shape[2]}},
                           blocks::pattern_source(table, std::move(patterns.own_here), plan.direction)});
  return share;
}

// Every block of some rows of blocks of every mask as bools, made while it is read:
// (H, q blocks, kv blocks, q, kv), or (…, kv, q). The bits of one row of blocks are kept, since a reader asks for its blocks one after the other.
class EveryBlock final : public ArraySource {
 public:
  EveryBlock(std::vector<Mask> masks, IndexRange rows, std::int64_t kv_blocks, BlockShape block,
             Direction direction)
      : ArraySource(type_of(std::ssize(masks), rows, kv_blocks, block, direction), "partial_mask_blocks"),
        masks_(std::move(masks)),
        first_row_(rows.begin),
        block_(block),
        direction_(direction) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const std::scoped_lock lock(mutex_);
    auto* to = static_cast<std::uint8_t*>(out);
    const std::int64_t row_words = blocks::words_for(block_.kv);
    std::vector<blocks::Word> bits(static_cast<std::size_t>(block_.q * row_words));
    const blocks::Box part{start[3], count[3], start[4], count[4]};
    for (std::int64_t h = start[0]; h < start[0] + count[0]; ++h)
      for (std::int64_t i = start[1]; i < start[1] + count[1]; ++i)
        for (std::int64_t j = start[2]; j < start[2] + count[2]; ++j) {
          const blocks::BitRows& row = row_of_blocks(h, first_row_ + i);
          const std::int64_t column = j * block_.kv;
          blocks::gather(row, column, std::min(block_.kv, row.columns - column), row_words, bits.data());
          std::fill(bits.begin() + row.rows * row_words, bits.end(), blocks::Word{0});
          blocks::expand_part(bits.data(), row_words, part, direction_, to);
          to += count[3] * count[4];
        }
  }

 private:
  static ArrayType type_of(std::int64_t masks, IndexRange rows, std::int64_t kv_blocks, BlockShape block,
                           Direction direction) {
    const Shape pattern = blocks::pattern_shape(block, direction);
    return {DType::boolean, {masks, rows.end - rows.begin, kv_blocks, pattern[0], pattern[1]}};
  }

  const blocks::BitRows& row_of_blocks(std::int64_t h, std::int64_t i) const {
    if (h == held_head_ && i == held_row_) return held_;
    const MaskNode& node = masks_[static_cast<std::size_t>(h)].node();
    const blocks::Rectangle where{i * block_.q, std::min((i + 1) * block_.q, node.q_length()), 0,
                                  node.kv_length()};
    held_head_ = -1;  // in case filling fails
    held_ = buffer_.rows(where.rows(), where.columns());
    node.fill(where, held_);
    held_head_ = h;
    held_row_ = i;
    return held_;
  }

  std::vector<Mask> masks_;
  std::int64_t first_row_;
  BlockShape block_;
  Direction direction_;
  mutable std::mutex mutex_;
  mutable blocks::BitBuffer buffer_;
  mutable blocks::BitRows held_;
  mutable std::int64_t held_head_ = -1, held_row_ = -1;
};

MaskInfo dynamic_info(const InfoPlan& plan, std::vector<Scan> scans,
                      std::shared_ptr<const ArraySource> partial_blocks) {
  const Layout& layout = plan.layout;
  MaskInfo info = begun(plan);
  info.masks = plan.known.masks;
  info.head_mask = plan.known.of_head;

  const Shape shape{layout.rows, layout.q_blocks, layout.kv_blocks};
  Array data_next(DType::int32, shape), mask_next(DType::int32, shape), block_mask(DType::int32, shape);
  auto* data = reinterpret_cast<std::int32_t*>(data_next.data());
  auto* next = reinterpret_cast<std::int32_t*>(mask_next.data());
  auto* states = reinterpret_cast<std::int32_t*>(block_mask.data());
  const std::int64_t heads_per_shard = layout.rows / layout.head_shards,
                     per_shard = layout.q_blocks_per_shard();
  for (std::int64_t h = 0; h < layout.rows; ++h) {
    Scan& scan = scans[static_cast<std::size_t>(h)];
    for (std::int64_t i = 0; i < layout.q_blocks; ++i) {
      std::int64_t j = scan.summary.states->run(i).begin;
      for (const std::uint8_t state : scan.summary.states->states(i)) {
        const std::int64_t at = (h * layout.q_blocks + i) * layout.kv_blocks + j;
        states[at] = state;
        if (state != 0)
          data[at] = static_cast<std::int32_t>(plan.direction == Direction::forward ? j : i % per_shard);
        if (state == 1)
          next[at] = static_cast<std::int32_t>(
              ((h % heads_per_shard) * per_shard + i % per_shard) * layout.kv_blocks + j);
        ++j;
      }
    }
    info.summaries.push_back(std::move(scan.summary));
  }
  // Narrowed by what the indices could be, not by what they are: the arrays of all masks of a shape are
  // alike.
  const blocks::IndexBounds bounds = plan.bounds(plan.known);
  info.data_next = blocks::narrowed(std::move(data_next), plan.index_dtype(bounds.data_next));
  info.mask_next = blocks::narrowed(std::move(mask_next), plan.index_dtype(bounds.mask_next));
  info.block_mask = blocks::narrowed(std::move(block_mask), plan.index_dtype(bounds.block_mask));
  info.unshrunk_grid = shape;
  info.partial_mask_blocks = std::move(partial_blocks);
  return info;
}

std::shared_ptr<const ArraySource> every_block(const InfoPlan& plan, std::vector<Mask> masks,
                                               IndexRange rows) {
  return std::make_shared<EveryBlock>(std::move(masks), rows, plan.layout.kv_blocks, plan.block,
                                      plan.direction);
}

MaskInfo dynamic_info(const InfoPlan& plan, const BlockProgress& report) {
  Progress progress(report, plan.layout.grid() * plan.layout.rows);
  std::vector<Scan> scans;
  for (const Mask& m : plan.heads)
    scans.push_back(blocks::scan_mask(m, plan.block, nullptr, progress.counter()));
  return dynamic_info(plan, std::move(scans), every_block(plan, plan.heads, {0, plan.layout.q_blocks}));
}

// The same by several ranks. A rank reads its rows of blocks twice: to tell their states, and to write them.
MaskInfoShare dynamic_share(const InfoPlan& plan, const BlockProgress& report, Communicator& comm) {
  const Layout& layout = plan.layout;
  const QueryPartition shares = plan.query_partition(plan.heads, comm.size());
  auto found = scan_shares(plan.heads, plan, shares, nullptr, report, comm);
  std::vector<Scan> scans = joined_scans(plan.heads, plan, std::move(found), nullptr, comm);
  const Shape pattern = blocks::pattern_shape(plan.block, plan.direction);
  std::optional<MaskInfo> info;
  if (comm.is_first()) {
    const ArrayType type(DType::boolean,
                         {layout.rows, layout.q_blocks, layout.kv_blocks, pattern[0], pattern[1]});
    info = dynamic_info(plan, std::move(scans), blocks::type_alone(type));
  }
  MaskInfoShare share = begun_share(std::move(info), comm);
  for (std::int64_t h = 0; h < layout.rows; ++h) {
    const IndexRange rows = shares.rows(comm.rank(), h, plan.block);
    if (rows.begin == rows.end) continue;
    share.parts.push_back(
        {"partial_mask_blocks",
         {{h, rows.begin, 0, 0, 0}, {1, rows.end - rows.begin, layout.kv_blocks, pattern[0], pattern[1]}},
         every_block(plan, {plan.heads[static_cast<std::size_t>(h)]}, rows)});
  }
  return share;
}

std::vector<Mask> heads_of(const std::shared_ptr<const ArraySource>& mask) {
  if (core::required(mask).shape().size() != 3)
    throw Error(Error::Kind::input,
                fmt::format("a dynamic mask has three axes (heads, queries, keys), not the shape {}",
                            to_string(mask->shape())));
  if (mask->dtype() != DType::boolean)
    throw Error(Error::Kind::input,
                fmt::format("a dynamic mask must be bool, not {}", name_of(mask->dtype())));
  std::vector<Mask> heads;
  for (std::int64_t h = 0; h < mask->shape()[0]; ++h) heads.push_back(array_mask(slice_of(mask, h)));
  return heads;
}

MaskInfo processed(const std::vector<Mask>& heads, BlockShape block, Direction direction, MaskInfoKind kind,
                   const ProcessMaskOptions& options) {
  return MaskInfoPlan(heads, block, direction, kind, options)
      .run(options.progress, options.max_pattern_bytes);
}

}  // namespace

std::shared_ptr<const ArraySource> blocks::type_alone(const ArrayType& type) {
  const auto nothing = [](std::span<const std::int64_t>, std::span<const std::int64_t>, void*) {
    throw Error(Error::Kind::internal, "partial_mask_blocks: no element of it is held here");
  };
  return generated_source(type, "partial_mask_blocks", nothing);
}

namespace {

// Steps 3, 6 and 7: what the index arrays are made from.
struct IndexInputs {
  bool is_left_to_kernel;
  std::int64_t kept;  // patterns that there are ids of
  Layout layout;
  std::vector<blocks::RowGrid> rows;
  blocks::Empty empty;
};

IndexInputs index_inputs(const InfoPlan& plan, const blocks::DistinctMasks& distinct,
                         const std::vector<Scan>& scans, std::int64_t patterns) {
  // 7. A computable mask keeps no partial blocks.
  const bool is_left_to_kernel = plan.is_left_to_kernel(distinct);
  IndexInputs inputs{is_left_to_kernel,
                     is_left_to_kernel ? 0 : patterns,
                     plan.layout,
                     {},
                     plan.settings.shrink_grid && distinct.masks.size() == 1 ? blocks::Empty::left_out
                                                                             : blocks::Empty::kept};
  // 3. Leading rows.
  inputs.layout.rows = plan.rows(distinct);
  for (std::int64_t r = 0; r < inputs.layout.rows; ++r) {
    const auto head = static_cast<std::size_t>(r * (plan.head_count() / inputs.layout.rows));
    const Scan& scan = scans[static_cast<std::size_t>(distinct.of_head[head])];
    inputs.rows.push_back(
        {scan.summary.states.get(),
         inputs.kept > 0 ? reinterpret_cast<const std::int32_t*>(scan.pattern_ids.data()) : nullptr});
  }
  return inputs;
}

}  // namespace

std::vector<PlannedArray> blocks::arrays_of(const InfoPlan& plan, const DistinctMasks& distinct,
                                            const std::vector<Scan>& scans, std::int64_t patterns) {
  const IndexInputs in = index_inputs(plan, distinct, scans, patterns);
  const IndexTypes types = index_types(in.layout, in.rows, in.kept, in.empty,
                                       [&](std::int64_t largest) { return plan.index_dtype(largest); });
  std::vector<PlannedArray> arrays{{"data_next", {types.data_next, types.shape}}};
  if (in.kept > 0) arrays.push_back({"mask_next", {types.mask_next, types.shape}});
  arrays.push_back({"block_mask", {types.block_mask, types.shape}});
  if (in.kept > 0) arrays.push_back({"partial_mask_blocks", blocks_type(plan, patterns)});
  if (in.is_left_to_kernel) arrays.push_back({"q_sequence", {DType::int32, {plan.q_length()}}});
  return arrays;
}

MaskInfo blocks::put_together(const InfoPlan& plan, DistinctMasks distinct, std::vector<Scan> scans,
                              std::shared_ptr<const ArraySource> partial_blocks) {
  MaskInfo info = begun(plan);
  const std::int64_t patterns = partial_blocks->shape()[0];
  const IndexInputs in = index_inputs(plan, distinct, scans, patterns);
  const bool is_left_to_kernel = in.is_left_to_kernel;
  const Layout& layout = in.layout;

  // 5., 6. and 8. Look-ahead, shrinking and narrowing.
  IndexArrays arrays = index_arrays(layout, in.rows, in.kept, in.empty,
                                    [&](std::int64_t largest) { return plan.index_dtype(largest); });
  info.unshrunk_grid = {layout.rows, layout.q_blocks, layout.kv_blocks};

  // 7. Computable masks.
  info.distinct_partial_blocks = patterns;
  if (is_left_to_kernel) {
    info.mask_function = distinct.masks[0];
    info.q_sequence = Array(DType::int32, {plan.q_length()});
    const auto sequence = info.q_sequence->elements<std::int32_t>();
    std::iota(sequence.begin(), sequence.end(), 0);
  } else if (patterns > 0) {
    info.partial_mask_blocks = std::move(partial_blocks);
  }

  info.data_next = std::move(arrays.data_next);
  info.block_mask = std::move(arrays.block_mask);
  if (info.partial_mask_blocks) info.mask_next = std::move(arrays.mask_next);
  for (Scan& scan : scans) info.summaries.push_back(std::move(scan.summary));
  info.masks = std::move(distinct.masks);
  info.head_mask = std::move(distinct.of_head);
  return info;
}

MaskInfo MaskInfoPlan::run(const BlockProgress& progress, std::int64_t max_pattern_bytes) const {
  return plan_->is_dynamic() ? dynamic_info(*plan_, progress)
                             : fixed_info(*plan_, progress, max_pattern_bytes);
}

MaskInfoShare MaskInfoPlan::run_with(Communicator& comm, const BlockProgress& progress,
                                     std::int64_t max_pattern_bytes) const {
  if (!comm.is_single())
    return plan_->is_dynamic() ? dynamic_share(*plan_, progress, comm)
                               : fixed_share(*plan_, progress, max_pattern_bytes, comm);
  MaskInfoShare share = begun_share(run(progress, max_pattern_bytes), comm);
  if (const auto& blocks = share.info->partial_mask_blocks)
    share.parts.push_back({"partial_mask_blocks", whole_box(blocks->shape()), blocks});
  return share;
}

MaskInfo process_mask(const std::vector<Mask>& heads, BlockShape block, const ProcessMaskOptions& options) {
  return processed(heads, block, Direction::forward, MaskInfoKind::fixed, options);
}

MaskInfo process_mask_dkv(const std::vector<Mask>& heads, BlockShape block,
                          const ProcessMaskOptions& options) {
  return processed(heads, block, Direction::dkv, MaskInfoKind::fixed, options);
}

MaskInfo process_dynamic_mask(const std::shared_ptr<const ArraySource>& mask, BlockShape block,
                              const ProcessMaskOptions& options) {
  return processed(heads_of(mask), block, Direction::forward, MaskInfoKind::dynamic, options);
}

MaskInfo process_dynamic_mask_dkv(const std::shared_ptr<const ArraySource>& mask, BlockShape block,
                                  const ProcessMaskOptions& options) {
  return processed(heads_of(mask), block, Direction::dkv, MaskInfoKind::dynamic, options);
}

MaskInfo process_dynamic_mask(const std::vector<Mask>& heads, BlockShape block,
                              const ProcessMaskOptions& options) {
  return processed(heads, block, Direction::forward, MaskInfoKind::dynamic, options);
}

MaskInfo process_dynamic_mask_dkv(const std::vector<Mask>& heads, BlockShape block,
                                  const ProcessMaskOptions& options) {
  return processed(heads, block, Direction::dkv, MaskInfoKind::dynamic, options);
}

}  // namespace ejk
