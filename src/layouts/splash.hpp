// Layout of JAX's splash attention (MaskInfo): its arrays, and the walk of the kernel over them. The position
// of an entry determines only its block row (forward) or block column (dkv).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blocks/index_arrays.hpp"
#include "ejk/mask_info.hpp"
#include "layouts/block_mask.hpp"
#include "layouts/element_bits.hpp"
#include "layouts/layouts.hpp"

namespace ejk::blocks {

/// The arrays, with consistent shapes and dtypes, and the settings. Lengths may be unknown.
struct StoredArrays {
  std::string name;
  std::shared_ptr<const ArraySource> data_next, block_mask;
  std::shared_ptr<const ArraySource> mask_next, partial_mask_blocks, q_sequence;  // or null
  bool is_dynamic = false;
  Direction direction = Direction::forward;
  BlockShape block;
  MaskShape shape;
  std::int64_t head_shards = 1, q_shards = 1;

  const Shape& grid() const { return block_mask->shape(); }  // rows, height, width
  bool forward() const { return direction == Direction::forward; }
  /// The kernel computes the elements of partial blocks.
  bool is_computable() const { return q_sequence && !mask_next; }
  std::shared_ptr<const ArraySource> find(std::string_view array) const {
    return array == "data_next" ? data_next : array == "mask_next" ? mask_next : block_mask;
  }
};

/// Throws Error{input} about the array at fault, or Error{usage} where `given` contradicts the attributes.
StoredArrays stored_arrays(const ArrayGroup& group, const StoredSettings& given);

struct StoredLine {
  std::int64_t i = 0;
  std::span<const std::int64_t> states, data;
  std::span<const std::int64_t> masks;  // empty without mask_next
};

enum class Take { elements, visits };

/// Shards and ranges of the arrays for a mask of heads × queries × keys.
struct StoredLayout {
  Layout layout;
  std::int64_t heads = 1, q_length = 0, kv_length = 0;
  std::int64_t lines_per_shard = 1;  // height of the index arrays for one query shard

  std::int64_t row_of(std::int64_t head) const { return head / (heads / layout.rows); }
  /// Dynamic masks: the number of block (i, j) in its slab (heads of the shard, block rows of the shard,
  /// block columns), and the axes of partial_mask_blocks for a number found in block row i.
  std::int64_t own_pattern(std::int64_t row, std::int64_t i, std::int64_t j) const {
    const std::int64_t per_shard = layout.q_blocks_per_shard();
    return (row % layout.rows_per_shard() * per_shard + i % per_shard) * layout.kv_blocks + j;
  }
  Shape pattern_index(std::int64_t row, std::int64_t i, std::int64_t pattern) const {
    if (!is_dynamic) return {pattern};
    const std::int64_t per_shard = layout.q_blocks_per_shard(), line = pattern / layout.kv_blocks;
    return {row / layout.rows_per_shard() * layout.rows_per_shard() + line / per_shard,
            i / per_shard * per_shard + line % per_shard, pattern % layout.kv_blocks};
  }
  /// Exclusive limits of data_next and mask_next; 0 without partial blocks.
  std::int64_t data_limit = 0, mask_limit = 0;
  bool is_dynamic = false;
  /// "there are 8 key blocks", "partial_mask_blocks has 3".
  std::string data_range() const;
  std::string mask_range() const;

  /// The block row of an entry in line i of the index arrays; in dkv `data` counts within the shard.
  std::int64_t q_block(std::int64_t i, std::int64_t data) const {
    return layout.direction == Direction::forward ? i
                                                  : i / lines_per_shard * layout.q_blocks_per_shard() + data;
  }
  std::int64_t kv_block(std::int64_t j, std::int64_t data) const {
    return layout.direction == Direction::forward ? data : j;
  }
  /// The block of an entry without a fault. Without mask_next its pattern is its column.
  StoredVisit visit(const StoredLine& line, std::size_t p, Take take) const {
    const bool full = take == Take::visits || line.states[p] == 2;
    const auto column = static_cast<std::int32_t>(kv_block(static_cast<std::int64_t>(p), line.data[p]));
    return {static_cast<std::int32_t>(q_block(line.i, line.data[p])), column,
            full                 ? BlockGrid::kFull
            : line.masks.empty() ? column
                                 : static_cast<std::int32_t>(line.masks[p])};
  }
};

/// Throws Error{input} where the arrays are not those of such a mask.
StoredLayout stored_layout(const StoredArrays& arrays, const Shape& shape);

/// The lines of a row in order. Values beyond 63 bits become the largest.
void for_each_line(const StoredArrays& arrays, std::int64_t row,
                   const std::function<void(const StoredLine&)>& f);

/// An entry of the index arrays that no kernel can use.
struct StoredFault {
  const char* rule;  // of check_mask_info
  const char* array;
  std::int64_t value;
  std::string why;
};

std::optional<StoredFault> fault_of(const StoredArrays& arrays, const StoredLayout& layout,
                                    const StoredLine& line, std::size_t p, Take take);

/// The blocks that a kernel visits in a row of the index arrays. Throws Error{input} for a number out of
/// range, a block that is visited twice, and elements that are not stored.
std::shared_ptr<const BlockGrid> visited_blocks(const StoredArrays& arrays, const StoredLayout& layout,
                                                std::int64_t row, Take take);

/// The steps that may visit block (i, j): a line of the index arrays along one axis.
struct StoredSteps {
  Shape first;              // index of the first step
  std::size_t axis = 2;     // of the line
  std::int64_t wanted = 0;  // the value of data_next for the block
  std::vector<std::int64_t> states, data, masks;

  Shape index(std::size_t p) const {
    Shape at = first;
    at[axis] += static_cast<std::int64_t>(p);
    return at;
  }
  /// The first from `from` on that visits the block.
  std::optional<std::size_t> find(std::size_t from) const {
    for (std::size_t p = from; p < states.size(); ++p)
      if (states[p] != 0 && data[p] == wanted) return p;
    return std::nullopt;
  }
};
StoredSteps steps_to(const StoredArrays& arrays, const StoredLayout& layout, std::int64_t row, std::int64_t i,
                     std::int64_t j);

/// The elements in partial_mask_blocks, read on demand; if only in order, all at first use and kept as bits.
class StoredPatterns {
 public:
  explicit StoredPatterns(const StoredArrays& arrays);
  std::shared_ptr<const BlockElements> of_row(const StoredLayout& layout, std::int64_t row) const;

 private:
  std::shared_ptr<const ElementBits> bits_;
  std::shared_ptr<const BlockElements> of_all_rows_;  // of fixed masks, whose rows share the patterns
};

}  // namespace ejk::blocks
