// The checked arguments of a MaskInfo, and the rules for its arrays: how many rows they have, how wide
// indices are, what is left to the kernel. The plan and the making both follow them.
// tests: tests/blocks/test_plan.cpp
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blocks/index_arrays.hpp"
#include "blocks/rank_scan.hpp"
#include "blocks/scan.hpp"
#include "ejk/communicator.hpp"
#include "ejk/mask_info.hpp"

namespace ejk::blocks {

/// The distinct ones among the masks of heads, in order of first appearance, and for each head the index of
/// its mask.
struct DistinctMasks {
  std::vector<Mask> masks;
  std::vector<std::int64_t> of_head;
};

/// What the values of the index arrays are at most.
struct IndexBounds {
  std::int64_t data_next;
  std::int64_t mask_next;
  std::int64_t block_mask;
};

/// What making the index arrays takes, for each block of theirs, as RowCosts::bytes. One process does it.
inline constexpr double kBytesOfIndices = 64;

struct InfoPlan {
  std::vector<Mask> heads;
  BlockShape block;
  Direction direction = Direction::forward;
  MaskInfoKind kind = MaskInfoKind::fixed;
  MaskInfoSettings settings;
  Layout layout;
  /// As far as that can be told without reading an array. Of a dynamic mask each head counts as distinct.
  DistinctMasks known;

  std::int64_t head_count() const { return static_cast<std::int64_t>(heads.size()); }
  std::int64_t q_length() const { return heads.front().q_length(); }
  std::int64_t kv_length() const { return heads.front().kv_length(); }
  bool is_dynamic() const { return kind == MaskInfoKind::dynamic; }
  bool is_padded() const {
    return layout.q_blocks * block.q != q_length() || layout.kv_blocks * block.kv != kv_length();
  }

  /// Rows of the index arrays: one a head shard if every shard holds a single mask, else one a head.
  std::int64_t rows(const DistinctMasks& distinct) const;

  /// A single computable mask is evaluated by the kernel. One that is padded is not: its function would say
  /// True outside.
  bool is_left_to_kernel(const DistinctMasks& distinct) const;

  /// They decide the dtypes of a dynamic mask; those of a fixed one are decided by the values themselves.
  IndexBounds bounds(const DistinctMasks& distinct) const;

  /// Memory that scanning and putting together take at the most, beside the partial blocks.
  std::int64_t work_bytes() const;

  /// As MaskInfoPlan::arrays().
  std::vector<PlannedArray> arrays() const;

  /// What looking at rows of blocks of these masks takes, and which each rank looks at.
  std::vector<RowCosts> row_costs(const std::vector<Mask>& masks) const;
  QueryPartition query_partition(const std::vector<Mask>& masks, std::int64_t ranks) const;

  /// What ranks do, by ranks, where all masks that may differ do.
  std::vector<RankWork> shares(std::int64_t ranks) const;

  /// The dtype of indices up to `largest`.
  DType index_dtype(std::int64_t largest) const {
    return settings.downcast ? narrowest(largest) : DType::int32;
  }
};

/// Whether masks are the same, as far as that can be told without reading an array.
bool known_same(const Mask& a, const Mask& b);

/// The distinct masks by content; may read arrays, of which each rank compares some rows.
DistinctMasks distinct_masks(const std::vector<Mask>& heads, Communicator& comm);

/// Throws what the constructor of MaskInfoPlan throws.
InfoPlan checked(std::vector<Mask> heads, BlockShape block, Direction direction, MaskInfoKind kind,
                 const MaskInfoSettings& settings);

/// The type of partial_mask_blocks of fixed masks, of which there are so many.
ArrayType blocks_type(const InfoPlan& plan, std::int64_t patterns);

/// A source that has the type of partial_mask_blocks and no element to read: it lies elsewhere, or nowhere.
std::shared_ptr<const ArraySource> type_alone(const ArrayType& type);

/// The MaskInfo of fixed masks, from the scans of the distinct ones and their partial blocks.
MaskInfo put_together(const InfoPlan& plan, DistinctMasks distinct, std::vector<Scan> scans,
                      std::shared_ptr<const ArraySource> partial_blocks);

/// The arrays that there are of those that a plan lists, without is_dynamic_mask.
std::vector<PlannedArray> arrays_of(const MaskInfo& info);
/// The same before they are put together from the scans of the distinct masks, which have so many patterns.
std::vector<PlannedArray> arrays_of(const InfoPlan& plan, const DistinctMasks& distinct,
                                    const std::vector<Scan>& scans, std::int64_t patterns);

/// "0-3, 7": the heads whose mask is `u`; `head_mask` has the mask of each head.
std::string heads_with(const std::vector<std::int64_t>& head_mask, std::int64_t u);

}  // namespace ejk::blocks
