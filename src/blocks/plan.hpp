// Checked arguments of a MaskInfo, and the rules for its arrays, which the plan and the computation share.
// tests: tests/blocks/test_plan.cpp
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "blocks/index_arrays.hpp"
#include "blocks/rank_scan.hpp"
#include "blocks/scan.hpp"
#include "ejk/communicator.hpp"
#include "ejk/mask_info.hpp"

namespace ejk::blocks {

/// The distinct masks in order of first appearance, and the index of each head's mask.
struct DistinctMasks {
  std::vector<Mask> masks;
  std::vector<std::int64_t> of_head;
};

struct IndexBounds {
  std::int64_t data_next, mask_next, block_mask;
};

/// Cost of the index arrays for each of their blocks, in the unit of RowCosts::bytes. Rank 0 computes them.
inline constexpr double kBytesOfIndices = 64;

struct InfoPlan {
  std::vector<Mask> heads;
  BlockShape block;
  Direction direction = Direction::forward;
  MaskInfoKind kind = MaskInfoKind::fixed;
  MaskInfoSettings settings;
  Layout layout;
  /// As far as it is known without reading an array. Every head of a dynamic mask is distinct.
  DistinctMasks known;

  std::int64_t head_count() const { return static_cast<std::int64_t>(heads.size()); }
  std::int64_t q_length() const { return heads.front().q_length(); }
  std::int64_t kv_length() const { return heads.front().kv_length(); }
  bool is_dynamic() const { return kind == MaskInfoKind::dynamic; }
  bool is_padded() const {
    return layout.q_blocks * block.q != q_length() || layout.kv_blocks * block.kv != kv_length();
  }

  /// Rows of the index arrays: one a head shard if every shard has a single mask, else one a head.
  std::int64_t rows(const DistinctMasks& distinct) const;

  /// Whether the kernel evaluates the mask: a single computable one, not padded.
  bool is_left_to_kernel(const DistinctMasks& distinct) const;

  /// Dtypes of dynamic masks follow from these, those of fixed masks from the values.
  IndexBounds bounds(const DistinctMasks& distinct) const;

  /// Workspace and index arrays, at most, without the partial blocks.
  std::int64_t work_bytes() const;

  std::vector<PlannedArray> arrays() const;

  /// The type of partial_mask_blocks; of dynamic masks the number of patterns does not matter.
  ArrayType blocks_type(std::int64_t patterns) const;

  std::vector<RowCosts> row_costs(const std::vector<Mask>& masks) const;

  /// Work of each rank if all masks that may differ are distinct.
  std::vector<RankWork> shares(std::int64_t ranks) const;

  DType index_dtype(std::int64_t largest) const {
    return settings.downcast ? narrowest(largest) : DType::int32;
  }
};

/// Whether masks are the same, as far as it is known without reading an array.
bool known_same(const Mask& a, const Mask& b);

/// The distinct masks by content. May read arrays; each rank compares some of their rows.
DistinctMasks distinct_masks(const std::vector<Mask>& heads, Communicator& comm);

/// Throws what process_mask throws before it reads a mask.
InfoPlan checked(std::vector<Mask> heads, BlockShape block, Direction direction, MaskInfoKind kind,
                 const MaskInfoSettings& settings);

/// The scans of the distinct masks, which several ranks divide.
struct JoinedScans {
  DistinctMasks distinct;
  std::vector<Scan> scans;              // on rank 0 alone
  std::shared_ptr<PatternTable> table;  // the partial blocks that this rank found; null for dynamic masks
  // Of several ranks: the partial blocks of all, and the rows of blocks of each mask that this rank scanned.
  std::optional<RankPatterns> patterns = std::nullopt;
  std::vector<IndexRange> own_rows = {};

  std::int64_t pattern_count() const { return patterns ? patterns->count : table ? table->size() : 0; }
};
JoinedScans scan_masks(const InfoPlan& plan, Communicator& comm, const BlockProgress& progress,
                       std::int64_t max_pattern_bytes);

/// The masks with the results of their scans.
ScannedMasks scanned_masks(BlockShape block, JoinedScans found);

/// partial_mask_blocks of one process.
std::shared_ptr<const ArraySource> partial_blocks(const InfoPlan& plan, const JoinedScans& found);

/// The parts of it that this of several ranks has.
std::vector<ArrayPart> partial_parts(const InfoPlan& plan, const JoinedScans& found);

/// The arrays alone, on rank 0. Their partial_mask_blocks is `partial`, if any block is partial.
MaskInfo info_of(const InfoPlan& plan, const JoinedScans& found, std::shared_ptr<const ArraySource> partial);

/// The types of the arrays of fixed masks, from the scans of the distinct masks and the number of patterns.
std::vector<PlannedArray> arrays_of(const InfoPlan& plan, const DistinctMasks& distinct,
                                    const std::vector<Scan>& scans, std::int64_t patterns);

/// "0-3, 7": the heads whose mask is `u`; `head_mask` has the mask of each head.
std::string heads_with(const std::vector<std::int64_t>& head_mask, std::int64_t u);

}  // namespace ejk::blocks
