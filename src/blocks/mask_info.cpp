// MaskInfo from masks. The procedure (Q queries, K keys, H heads; block bq × bk), for static masks:
//
// 1. Equal masks are processed once, in order of first appearance over the heads.
// 2. The state of each block: 0 empty, 1 partial, 2 full.
// 3. The index arrays have one row a head shard if every shard holds a single mask, else one a head.
// 4. Distinct partial blocks are numbered by first appearance over the distinct masks, row by row of blocks,
//    for all heads and shards; without any neither partial_mask_blocks nor mask_next exists.
// 5. In each slab (head shard × query shard), in the order of the kernel's walk (forward: row, query block,
//    key block; dkv: key block, row, query block; last fastest), data_next is the coordinate of the first
//    non-empty block at or after a position and mask_next the number of the first partial one; past the last
//    they wrap around to the slab's first; 0 where the slab has none. Query blocks count within the shard.
// 6. Shrinking, with one distinct mask only: the empty blocks of each row (forward; the rest moves left) or
//    column (dkv; the rest moves down) are omitted, per query shard; shards are then extended to the widest.
// 7. A single computable mask has q_sequence and the mask function, not partial blocks and mask_next.
// 8. Index arrays are narrowed to what their largest value needs.
//
// Dynamic masks skip 1, 3 and 4 to 7: every block is kept, and indices of empty blocks are 0.
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

using namespace blocks;

std::function<void(std::int64_t)> counted(const BlockProgress& report, std::int64_t all) {
  if (!report) return {};
  return [&report, all, done = std::int64_t{0}](std::int64_t blocks) mutable { report(done += blocks, all); };
}

// The bits of one block row, filled once for the blocks that a reader takes from it in turn.
struct BlockRow {
  std::mutex mutex;
  BitBuffer buffer;
  BitRows bits;
  std::int64_t head = -1, row = -1;

  void fill(const MaskNode& node, BlockShape block, std::int64_t of_head, std::int64_t i) {
    if (of_head == head && i == row) return;
    const Rectangle where{i * block.q, std::min((i + 1) * block.q, node.q_length()), 0, node.kv_length()};
    head = -1;  // filling may throw
    bits = buffer.rows(where.rows(), where.columns());
    node.fill(where, bits);
    head = of_head, row = i;
  }
};

// partial_mask_blocks of dynamic masks: every block of these rows of blocks, computed on read.
std::shared_ptr<const ArraySource> every_block(const InfoPlan& plan, std::vector<Mask> masks,
                                               IndexRange rows) {
  ArrayType type = plan.blocks_type(0);
  type.shape[0] = std::ssize(masks), type.shape[1] = rows.count();
  const auto fill = [masks = std::move(masks), rows, block = plan.block, direction = plan.direction,
                     row = std::make_shared<BlockRow>()](std::span<const std::int64_t> start,
                                                         std::span<const std::int64_t> count, void* out) {
    const std::scoped_lock lock(row->mutex);
    auto* to = static_cast<std::uint8_t*>(out);
    const std::int64_t row_words = words_for(block.kv);
    std::vector<Word> bits(static_cast<std::size_t>(block.q * row_words));
    const Box part{start[3], count[3], start[4], count[4]};
    for (std::int64_t h = start[0]; h < start[0] + count[0]; ++h)
      for (std::int64_t i = start[1]; i < start[1] + count[1]; ++i)
        for (std::int64_t j = start[2]; j < start[2] + count[2]; ++j) {
          row->fill(masks[static_cast<std::size_t>(h)].node(), block, h, rows.begin + i);
          const std::int64_t column = j * block.kv;
          gather(row->bits, column, std::min(block.kv, row->bits.columns - column), row_words, bits.data());
          std::fill(bits.begin() + row->bits.rows * row_words, bits.end(), Word{0});
          expand_part(bits.data(), row_words, part, direction, to);
          to += count[3] * count[4];
        }
  };
  return generated_source(std::move(type), "partial_mask_blocks", fill);
}

void fill_dynamic(const InfoPlan& plan, const std::vector<Scan>& scans, MaskInfo& info) {
  const Layout& layout = plan.layout;
  const Shape shape{layout.rows, layout.q_blocks, layout.kv_blocks};
  Array data_next(DType::int32, shape), mask_next(DType::int32, shape), block_mask(DType::int32, shape);
  auto* data = reinterpret_cast<std::int32_t*>(data_next.data());
  auto* next = reinterpret_cast<std::int32_t*>(mask_next.data());
  auto* states = reinterpret_cast<std::int32_t*>(block_mask.data());
  const std::int64_t heads_per_shard = layout.rows / layout.head_shards,
                     per_shard = layout.q_blocks_per_shard();
  for (std::int64_t h = 0; h < layout.rows; ++h) {
    const Scan& scan = scans[static_cast<std::size_t>(h)];
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
  }
  const IndexBounds bounds = plan.bounds(plan.known);
  info.data_next = narrowed(std::move(data_next), plan.index_dtype(bounds.data_next));
  info.mask_next = narrowed(std::move(mask_next), plan.index_dtype(bounds.mask_next));
  info.block_mask = narrowed(std::move(block_mask), plan.index_dtype(bounds.block_mask));
  info.unshrunk_grid = shape;
}

std::vector<Mask> heads_of(const std::shared_ptr<const ArraySource>& mask) {
  if (core::required(mask).shape().size() != 3)
    throw core::invalid("a dynamic mask has three axes (heads, queries, keys), not the shape {}",
                        to_string(mask->shape()));
  if (mask->dtype() != DType::boolean)
    throw core::invalid("a dynamic mask must be bool, not {}", name_of(mask->dtype()));
  std::vector<Mask> heads;
  for (std::int64_t h = 0; h < mask->shape()[0]; ++h) heads.push_back(array_mask(slice_of(mask, h)));
  return heads;
}

// Steps 3, 6 and 7: the sources of the index arrays.
struct IndexInputs {
  bool is_left_to_kernel;
  std::int64_t kept;  // patterns with ids
  Layout layout;
  std::vector<RowGrid> rows;
  Empty empty;
};

IndexInputs index_inputs(const InfoPlan& plan, const DistinctMasks& distinct, const std::vector<Scan>& scans,
                         std::int64_t patterns) {
  const bool is_left_to_kernel = plan.is_left_to_kernel(distinct);
  IndexInputs inputs{is_left_to_kernel,
                     is_left_to_kernel ? 0 : patterns,
                     plan.layout,
                     {},
                     plan.settings.shrink_grid && distinct.masks.size() == 1 ? Empty::omitted : Empty::kept};
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
  if (in.kept > 0) arrays.push_back({"partial_mask_blocks", plan.blocks_type(patterns)});
  if (in.is_left_to_kernel) arrays.push_back({"q_sequence", {DType::int32, {plan.q_length()}}});
  return arrays;
}

namespace {

void fill_fixed(const InfoPlan& plan, const JoinedScans& found, MaskInfo& info) {
  const IndexInputs in = index_inputs(plan, found.distinct, found.scans, found.pattern_count());
  // 5., 6. and 8. Look-ahead, shrinking and narrowing.
  IndexArrays arrays = index_arrays(in.layout, in.rows, in.kept, in.empty,
                                    [&](std::int64_t largest) { return plan.index_dtype(largest); });
  info.unshrunk_grid = {in.layout.rows, in.layout.q_blocks, in.layout.kv_blocks};
  if (in.is_left_to_kernel) {
    info.mask_function = found.distinct.masks[0];
    info.q_sequence = Array(DType::int32, {plan.q_length()});
    const auto sequence = info.q_sequence->elements<std::int32_t>();
    std::iota(sequence.begin(), sequence.end(), 0);
  }
  info.data_next = std::move(arrays.data_next);
  info.block_mask = std::move(arrays.block_mask);
  if (in.kept > 0) info.mask_next = std::move(arrays.mask_next);
}

MaskInfo processed(const std::vector<Mask>& heads, BlockShape block, Direction direction, MaskInfoKind kind,
                   const ProcessMaskOptions& options) {
  const InfoPlan plan = checked(heads, block, direction, kind, options);
  JoinedScans found = scan_masks(plan, single_process(), options.progress, options.max_pattern_bytes);
  MaskInfo info = info_of(plan, found, partial_blocks(plan, found));
  static_cast<ScannedMasks&>(info) = scanned_masks(block, std::move(found));
  return info;
}

}  // namespace

// 1., 2. and 4. Ranks scan contiguous block rows in the order of the walk, so pattern ids are those of one process,
// and a rank's new patterns are a contiguous range of them.
JoinedScans blocks::scan_masks(const InfoPlan& plan, Communicator& comm, const BlockProgress& progress,
                               std::int64_t max_pattern_bytes) {
  JoinedScans found{
      plan.is_dynamic() ? plan.known : distinct_masks(plan.heads, comm),
      {},
      plan.is_dynamic() ? nullptr : std::make_shared<PatternTable>(plan.block, max_pattern_bytes)};
  const std::vector<Mask>& masks = found.distinct.masks;
  if (comm.is_single()) {
    const auto counter = counted(progress, plan.layout.grid() * std::ssize(masks));
    for (const Mask& m : masks) found.scans.push_back(scan_mask(m, plan.block, found.table.get(), counter));
    return found;
  }
  const RowPartition partition(comm.size(), plan.row_costs(masks));
  std::int64_t blocks = 0;
  for (std::int64_t u = 0; u < std::ssize(masks); ++u) {
    found.own_rows.push_back(partition.rows(comm.rank(), u));
    blocks += found.own_rows.back().count() * plan.layout.kv_blocks;
  }
  const auto counter = counted(progress, blocks);
  std::vector<std::optional<BandScan>> bands(masks.size());
  for (std::size_t u = 0; u < masks.size(); ++u)
    if (found.own_rows[u].begin < found.own_rows[u].end)
      bands[u] = scan_band(masks[u], plan.block, found.own_rows[u], found.table.get(), counter);
  if (found.table) found.patterns = number_patterns(*found.table, comm);
  for (std::size_t u = 0; u < masks.size(); ++u)
    if (auto scan = joined(masks[u], plan.block, std::move(bands[u]),
                           found.patterns ? &*found.patterns : nullptr, comm))
      found.scans.push_back(std::move(*scan));
  return found;
}

ScannedMasks blocks::scanned_masks(BlockShape block, JoinedScans found) {
  ScannedMasks scanned{block, std::move(found.distinct.masks), std::move(found.distinct.of_head), {}, 0};
  for (Scan& scan : found.scans) scanned.summaries.push_back(std::move(scan.summary));
  scanned.distinct_partial_blocks = found.pattern_count();
  return scanned;
}

std::shared_ptr<const ArraySource> blocks::partial_blocks(const InfoPlan& plan, const JoinedScans& found) {
  return found.table ? pattern_source(found.table, plan.direction)
                     : every_block(plan, plan.heads, {0, plan.layout.q_blocks});
}

std::vector<ArrayPart> blocks::partial_parts(const InfoPlan& plan, const JoinedScans& found) {
  const Shape shape = plan.blocks_type(found.pattern_count()).shape;
  std::vector<ArrayPart> parts;
  if (found.patterns) {
    const RankPatterns& patterns = *found.patterns;
    if (const std::int64_t own = std::ssize(patterns.own_here); own > 0)
      parts.push_back({{{patterns.own.begin, 0, 0}, {own, shape[1], shape[2]}},
                       pattern_source(found.table, patterns.own_here, plan.direction)});
    return parts;
  }
  for (std::size_t h = 0; h < plan.heads.size(); ++h)
    if (const IndexRange rows = found.own_rows[h]; rows.begin < rows.end)
      parts.push_back({{{static_cast<std::int64_t>(h), rows.begin, 0, 0, 0},
                        {1, rows.count(), shape[2], shape[3], shape[4]}},
                       every_block(plan, {plan.heads[h]}, rows)});
  return parts;
}

MaskInfo blocks::info_of(const InfoPlan& plan, const JoinedScans& found,
                         std::shared_ptr<const ArraySource> partial) {
  MaskInfo info;
  info.direction = plan.direction;
  info.settings = plan.settings;
  info.is_dynamic_mask = plan.is_dynamic();
  if (plan.is_dynamic())
    fill_dynamic(plan, found.scans, info);
  else
    fill_fixed(plan, found, info);
  if (info.mask_next) info.partial_mask_blocks = std::move(partial);
  return info;
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
