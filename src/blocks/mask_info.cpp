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

MaskInfo begun(const InfoPlan& plan) {
  MaskInfo info;
  info.direction = plan.direction;
  info.block = plan.block;
  info.settings = plan.settings;
  info.is_dynamic_mask = plan.is_dynamic();
  return info;
}

// Names and types of rank 0's arrays, on all ranks; its parts are the index arrays.
MaskInfoShare begun_share(std::optional<MaskInfo> made, Communicator& comm) {
  MaskInfoShare share;
  share.info = std::move(made);
  RankMessage types;
  if (share.info) {
    std::vector<MaskInfoArray> arrays = arrays_of(*share.info);
    types.put(std::ssize(arrays));
    for (MaskInfoArray& array : arrays) {
      const ArrayType type = array.elements ? type_of(*array.elements) : ArrayType();
      types.put_text(array.name).put(array.absent).put(type.dtype).put_all(type.shape);
      auto& shared = share.arrays.emplace_back(MaskInfoShare::Array{array.name, array.absent, type});
      if (array.elements && array.elements != share.info->partial_mask_blocks)
        shared.parts.push_back({whole_box(type.shape), std::move(array.elements)});
    }
  }
  types = RankMessage(comm.broadcast(types.bytes()));
  if (share.info) return share;
  for (auto n = types.take<std::ptrdiff_t>(); n > 0; --n) {
    std::string name = types.take_text();
    const auto absent = types.take<MaskInfoArray::Absent>();
    const auto dtype = types.take<DType>();
    share.arrays.push_back({std::move(name), absent, {dtype, types.take_all<std::int64_t>()}});
  }
  return share;
}

// The scans of this rank's block rows of each mask, if any.
std::vector<std::optional<BandScan>> scan_shares(const std::vector<Mask>& masks, const InfoPlan& plan,
                                                 const RowPartition& shares, PatternTable* table,
                                                 const BlockProgress& report, const Communicator& comm) {
  std::vector<IndexRange> rows;
  std::int64_t blocks = 0;
  for (std::int64_t u = 0; u < std::ssize(masks); ++u) {
    rows.push_back(shares.rows(comm.rank(), u));
    blocks += (rows.back().end - rows.back().begin) * plan.layout.kv_blocks;
  }
  const auto progress = counted(report, blocks);
  std::vector<std::optional<BandScan>> found(masks.size());
  for (std::size_t u = 0; u < masks.size(); ++u)
    if (rows[u].begin < rows[u].end) found[u] = scan_band(masks[u], plan.block, rows[u], table, progress);
  return found;
}

std::vector<Scan> joined_scans(const std::vector<Mask>& masks, const InfoPlan& plan,
                               std::vector<std::optional<BandScan>> found, const RankPatterns* patterns,
                               Communicator& comm) {
  std::vector<Scan> scans;
  for (std::size_t u = 0; u < masks.size(); ++u)
    if (auto scan = joined(masks[u], plan.block, std::move(found[u]), patterns, comm))
      scans.push_back(std::move(*scan));
  return scans;
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
  type.shape[0] = std::ssize(masks), type.shape[1] = rows.end - rows.begin;
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
  const IndexBounds bounds = plan.bounds(plan.known);
  info.data_next = narrowed(std::move(data_next), plan.index_dtype(bounds.data_next));
  info.mask_next = narrowed(std::move(mask_next), plan.index_dtype(bounds.mask_next));
  info.block_mask = narrowed(std::move(block_mask), plan.index_dtype(bounds.block_mask));
  info.unshrunk_grid = shape;
  info.partial_mask_blocks = std::move(partial_blocks);
  return info;
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

MaskInfo processed(const std::vector<Mask>& heads, BlockShape block, Direction direction, MaskInfoKind kind,
                   const ProcessMaskOptions& options) {
  return MaskInfoPlan(heads, block, direction, kind, options)
      .run(options.progress, options.max_pattern_bytes);
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

MaskInfo fixed_info(const InfoPlan& plan, DistinctMasks distinct, std::vector<Scan> scans,
                    std::shared_ptr<const ArraySource> partial_blocks) {
  MaskInfo info = begun(plan);
  const std::int64_t patterns = partial_blocks->shape()[0];
  const IndexInputs in = index_inputs(plan, distinct, scans, patterns);
  const Layout& layout = in.layout;

  // 5., 6. and 8. Look-ahead, shrinking and narrowing.
  IndexArrays arrays = index_arrays(layout, in.rows, in.kept, in.empty,
                                    [&](std::int64_t largest) { return plan.index_dtype(largest); });
  info.unshrunk_grid = {layout.rows, layout.q_blocks, layout.kv_blocks};

  info.distinct_partial_blocks = patterns;
  if (in.is_left_to_kernel) {
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

MaskInfo info_of(const InfoPlan& plan, DistinctMasks distinct, std::vector<Scan> scans,
                 std::shared_ptr<const ArraySource> partial_blocks) {
  return plan.is_dynamic()
             ? dynamic_info(plan, std::move(scans), std::move(partial_blocks))
             : fixed_info(plan, std::move(distinct), std::move(scans), std::move(partial_blocks));
}

DistinctMasks distinct_of(const InfoPlan& plan, Communicator& comm) {
  return plan.is_dynamic() ? plan.known : distinct_masks(plan.heads, comm);
}

std::shared_ptr<PatternTable> table_of(const InfoPlan& plan, std::int64_t max_pattern_bytes) {
  return plan.is_dynamic() ? nullptr : std::make_shared<PatternTable>(plan.block, max_pattern_bytes);
}

}  // namespace

MaskInfo MaskInfoPlan::run(const BlockProgress& progress, std::int64_t max_pattern_bytes) const {
  const InfoPlan& plan = *plan_;
  DistinctMasks distinct = distinct_of(plan, single_process());
  const auto table = table_of(plan, max_pattern_bytes);
  // 2. and 4. States and partial blocks.
  const auto counter = counted(progress, plan.layout.grid() * std::ssize(distinct.masks));
  std::vector<Scan> scans;
  for (const Mask& m : distinct.masks) scans.push_back(scan_mask(m, plan.block, table.get(), counter));
  return info_of(plan, std::move(distinct), std::move(scans),
                 table ? pattern_source(table, plan.direction)
                       : every_block(plan, plan.heads, {0, plan.layout.q_blocks}));
}

// Ranks scan contiguous block rows in the order of the walk, so pattern ids are those of one process, and a
// rank's new patterns are a contiguous range of them.
MaskInfoShare MaskInfoPlan::run_with(Communicator& comm, const BlockProgress& progress,
                                     std::int64_t max_pattern_bytes) const {
  const InfoPlan& plan = *plan_;
  DistinctMasks distinct = distinct_of(plan, comm);
  const auto table = table_of(plan, max_pattern_bytes);
  const RowPartition partition(comm.size(), plan.row_costs(distinct.masks));
  auto found = scan_shares(distinct.masks, plan, partition, table.get(), progress, comm);
  std::optional<RankPatterns> patterns;
  if (table) patterns = number_patterns(*table, comm);
  std::vector<Scan> scans =
      joined_scans(distinct.masks, plan, std::move(found), patterns ? &*patterns : nullptr, comm);

  const ArrayType type = plan.blocks_type(patterns ? patterns->count : 0);
  std::optional<MaskInfo> info;
  if (comm.is_first()) {
    const auto nothing = [](std::span<const std::int64_t>, std::span<const std::int64_t>, void*) {
      throw Error(Error::Kind::internal, "partial_mask_blocks: its elements are on other ranks");
    };
    info = info_of(plan, std::move(distinct), std::move(scans),
                   generated_source(type, "partial_mask_blocks", nothing));
  }
  MaskInfoShare share = begun_share(std::move(info), comm);
  auto& partial = *std::find_if(share.arrays.begin(), share.arrays.end(),
                                [](const auto& array) { return array.name == "partial_mask_blocks"; });
  if (partial.absent != MaskInfoArray::Absent::no) return share;
  const Shape& shape = type.shape;
  if (patterns) {
    if (const std::int64_t own = std::ssize(patterns->own_here); own > 0)
      partial.parts.push_back({{{patterns->own.begin, 0, 0}, {own, shape[1], shape[2]}},
                               pattern_source(table, std::move(patterns->own_here), plan.direction)});
    return share;
  }
  for (std::int64_t h = 0; h < shape[0]; ++h) {
    const IndexRange rows = partition.rows(comm.rank(), h);
    if (rows.begin == rows.end) continue;
    partial.parts.push_back(
        {{{h, rows.begin, 0, 0, 0}, {1, rows.end - rows.begin, shape[2], shape[3], shape[4]}},
         every_block(plan, {plan.heads[static_cast<std::size_t>(h)]}, rows)});
  }
  return share;
}

std::vector<MaskInfoArray> arrays_of(const MaskInfo& info) {
  using Absent = MaskInfoArray::Absent;
  const Absent partial = info.partial_mask_blocks ? Absent::no
                         : info.q_sequence        ? Absent::computed
                                                  : Absent::no_partial_block;
  const auto of = [](const char* name, const Array* array, Absent absent) {
    return MaskInfoArray{name, array ? make_source(array->view(), name) : nullptr, absent};
  };
  return {of("data_next", &info.data_next, Absent::no),
          of("mask_next", info.mask_next ? &*info.mask_next : nullptr, partial),
          of("block_mask", &info.block_mask, Absent::no),
          {"partial_mask_blocks", info.partial_mask_blocks, partial},
          of("q_sequence", info.q_sequence ? &*info.q_sequence : nullptr,
             info.q_sequence ? Absent::no : Absent::not_computable)};
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
