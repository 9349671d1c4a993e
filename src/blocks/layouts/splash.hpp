// The arrays of a MaskInfo as they are stored, and what follows from them when they are walked as a kernel
// does: step by step through block_mask, fetching the block that data_next names and, where block_mask says
// partial, the elements that mask_next names. Nothing follows from where an entry stands but its row of
// blocks (forward) or its column (dkv).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blocks/block_mask.hpp"
#include "blocks/index_arrays.hpp"
#include "ejk/mask_info.hpp"

namespace ejk::blocks {

/// Lengths of masks: "8x4096x4096" as (8, 4096, 4096). Nothing when it is something else.
std::optional<Shape> lengths_in(std::string_view text);

/// The arrays, and what is known before the lengths are. Shapes and dtypes fit one another; no element was
/// read.
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
  /// The elements of partial blocks are left to the kernel.
  bool is_computable() const { return q_sequence && !mask_next; }
  std::shared_ptr<const ArraySource> find(std::string_view array) const {
    return array == "data_next" ? data_next : array == "mask_next" ? mask_next : block_mask;
  }
};

/// Throws Error{input} about the array at fault, or Error{usage} where `given` contradicts the attributes.
StoredArrays stored_arrays(const ArrayGroup& group, const StoredSettings& given);

/// One line of the index arrays: (row, i).
struct StoredLine {
  std::int64_t i = 0;
  std::span<const std::int64_t> states, data;
  std::span<const std::int64_t> masks;  // empty where there is no mask_next
};

/// What of the blocks that a kernel visits is wanted: their elements, or that they are visited.
enum class Take { elements, visits };

/// A block that a kernel visits, where it stands in the mask.
struct StoredVisit {
  std::int32_t q_block, column, pattern;
};

/// How the arrays are laid out for a mask of heads × queries × keys.
struct StoredLayout {
  Layout layout;
  std::int64_t heads = 1, q_length = 0, kv_length = 0;
  std::int64_t lines_per_shard = 1;  // of the height of the index arrays, one query shard

  std::int64_t row_of(std::int64_t head) const { return head / (heads / layout.rows); }
  /// Numbers that data_next and mask_next may hold are below these. No partial blocks: 0.
  std::int64_t data_limit = 0, mask_limit = 0;
  bool is_dynamic = false;
  /// "there are 8 key blocks", "partial_mask_blocks has 3".
  std::string data_range() const;
  std::string mask_range() const;

  /// The row of blocks that a number in line i of the index arrays is in, of dkv: `data` counts within the
  /// shard.
  std::int64_t q_block(std::int64_t i, std::int64_t data) const {
    return layout.direction == Direction::forward ? i
                                                  : i / lines_per_shard * layout.q_blocks_per_shard() + data;
  }
  std::int64_t kv_block(std::int64_t j, std::int64_t data) const {
    return layout.direction == Direction::forward ? data : j;
  }
  /// What an entry without a fault visits.
  StoredVisit visit(const StoredLine& line, std::size_t p, Take take) const {
    const bool full = take == Take::visits || line.states[p] == 2;
    return {static_cast<std::int32_t>(q_block(line.i, line.data[p])),
            static_cast<std::int32_t>(kv_block(static_cast<std::int64_t>(p), line.data[p])),
            full                 ? BlockGrid::kFull
            : line.masks.empty() ? 0
                                 : static_cast<std::int32_t>(line.masks[p])};
  }
};

/// Throws Error{input} where the arrays are not those of such a mask.
StoredLayout stored_layout(const StoredArrays& arrays, const Shape& shape);

/// The lines of a row in order. What does not fit 63 bits is the largest number.
void for_each_line(const StoredArrays& arrays, std::int64_t row,
                   const std::function<void(const StoredLine&)>& f);

/// What no kernel can do with an entry of the index arrays.
struct StoredFault {
  enum class Kind { state, range, elements };
  Kind kind;
  const char* array;
  std::int64_t value;
  std::string why;
};

/// Of an entry that makes a kernel compute. Nothing is wrong with a block that is empty.
std::optional<StoredFault> fault_of(const StoredArrays& arrays, const StoredLayout& layout,
                                    const StoredLine& line, std::size_t p, Take take);

/// The blocks that are visited, as a grid. Of a block that is there again, `twice` is told the place in the
/// mask; the first one counts.
std::shared_ptr<const BlockGrid> grid_of(const StoredArrays& arrays, const StoredLayout& layout,
                                         std::span<const StoredVisit> visits,
                                         const std::function<void(std::int64_t i, std::int64_t j)>& twice);

/// The blocks that a kernel visits in a row of the index arrays. Throws Error{input} that names array and
/// index for a number out of range, a block that is visited twice, elements that are not stored.
std::shared_ptr<const BlockGrid> visited_blocks(const StoredArrays& arrays, const StoredLayout& layout,
                                                std::int64_t row, Take take);

/// The steps among which a kernel visits block (i, j): a line of the index arrays along one axis.
struct StoredSteps {
  Shape first;              // index of the first one
  std::size_t axis = 2;     // along which they follow
  std::int64_t wanted = 0;  // the number that data_next has for the block
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

/// The distinct partial blocks in order, the elements of each as bits one after the other, as the array has
/// them.
void for_each_pattern(const StoredArrays& arrays,
                      const std::function<void(std::int64_t pattern, std::span<const Word> bits)>& f);

/// The elements in partial_mask_blocks, for a row of the index arrays. Read when they are looked at; where
/// that can only be done in order, all are read at the first time and kept as bits.
class StoredPatterns {
 public:
  explicit StoredPatterns(const StoredArrays& arrays);
  std::shared_ptr<const BlockElements> of_row(const StoredLayout& layout, std::int64_t row) const;

  class Bits;

 private:
  std::shared_ptr<const Bits> bits_;
  std::shared_ptr<const BlockElements> of_all_rows_;  // of fixed masks
  bool is_dynamic_;
};

}  // namespace ejk::blocks
