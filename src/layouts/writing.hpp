// What the layouts are written from: the scans of the distinct masks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "blocks/plan.hpp"
#include "blocks/scan.hpp"
#include "ejk/mask_layouts.hpp"
#include "layouts/block_mask.hpp"
#include "layouts/layouts.hpp"
#include "layouts/packed_sequences.hpp"
#include "mask/node.hpp"
#include "mask/patterns.hpp"

namespace ejk::blocks {

struct MaskScans : JoinedScans {
  const InfoPlan& plan;
  const MaskLayoutSettings& settings;

  std::int64_t q_blocks() const { return plan.layout.q_blocks; }
  std::int64_t kv_blocks() const { return plan.layout.kv_blocks; }
  std::int64_t q_length() const { return plan.q_length(); }
  std::int64_t kv_length() const { return plan.kv_length(); }
  /// Masks to store: one, or one a head.
  std::int64_t rows() const { return distinct.masks.size() == 1 ? 1 : plan.head_count(); }
  const Scan& of_row(std::int64_t row) const {
    return scans[static_cast<std::size_t>(distinct.of_head[static_cast<std::size_t>(row)])];
  }
  /// For a layout without heads. Throws Error{input} where heads have different masks.
  const Scan& of_all_heads() const;
};

/// The state of a block and its pattern, of a scan.
class ScanGrid {
 public:
  explicit ScanGrid(const Scan& scan)
      : states_(*scan.summary.states), ids_(reinterpret_cast<const std::int32_t*>(scan.pattern_ids.data())) {}
  std::uint8_t state(std::int64_t i, std::int64_t j) const { return states_.at(i, j); }
  std::int32_t pattern(std::int64_t i, std::int64_t j) const {
    return ids_[states_.begin_of(i) + j - states_.run(i).begin];
  }
  IndexRange run(std::int64_t i) const { return states_.run(i); }
  /// Calls f(j, state) for the non-empty blocks of a row.
  template <class F>
  void for_each(std::int64_t i, F&& f) const {
    std::int64_t j = states_.run(i).begin;
    for (const std::uint8_t state : states_.states(i)) {
      if (state != 0) f(j, state);
      ++j;
    }
  }

 private:
  const BlockStates& states_;
  const std::int32_t* ids_;
};

/// The True elements of a line (a query, or a key) as ranges, ascending. `lines` are queries or keys; f is
/// called for each of them in order. Cost: a few operations a block for each line of changing state, and the
/// elements of partial blocks.
enum class Lines { queries, keys };
void for_each_line(const MaskScans& scans, const Scan& scan, Lines lines,
                   const std::function<void(std::int64_t line, std::span<const IndexRange> ranges)>& f);

struct ArraysMade {
  MaskArrays& into;

  void add(const char* name, Array array) { add(name, make_source(std::move(array), name)); }
  void add(const char* name, std::shared_ptr<const ArraySource> array) {
    into.arrays.push_back({name, std::move(array)});
  }
  /// Integers of a setting.
  void add(const char* name, std::initializer_list<std::int64_t> values, Shape shape);
  void add(const char* name, bool value);
};

/// A plan of arrays: the checked settings, and the row that writes them.
struct ArraysPlan {
  MaskLayoutSettings settings;
  const StoredMaskLayout& layout;
  InfoPlan info;

  std::int64_t work_bytes() const;
};

/// cu_seqlens of queries and of keys. Errors: those of read_sequences.
SequenceOffsets sequences_in(const MaskLayoutSettings& how);

/// Blocks (n, q, kv) of bools, or (n, kv, q) of dkv, computed on read: patterns of the table, BlockGrid::kFull or
/// kEmptyBlock.
inline constexpr std::int32_t kEmptyBlock = -2;
std::shared_ptr<const ArraySource> blocks_source(const char* name, std::vector<std::int32_t> blocks,
                                                 const MaskScans& scans, Direction direction);

/// Sizes of blocks that make up a length, of queries and of keys: those given, or the block's and the rest.
/// Throws Error{input} about q_sizes or kv_sizes where those given do not.
std::vector<std::int64_t> q_block_sizes(const MaskLayoutSettings& how, std::int64_t length, BlockShape block);
std::vector<std::int64_t> kv_block_sizes(const MaskLayoutSettings& how, std::int64_t length,
                                         BlockShape block);

/// int32, which holds values up to `largest`. Throws Error{input} for a larger one.
Array index_array(const char* name, Shape shape, std::int64_t largest);

}  // namespace ejk::blocks
