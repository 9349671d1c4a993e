// Masks that are known block by block: which blocks hold True, and of those that are not full where their
// elements are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ejk/mask.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

using namespace mask;  // bits, rectangles and states of blocks

/// The blocks of a mask that hold True. As much memory as there are such blocks.
struct BlockGrid {
  static constexpr std::int32_t kFull = -1;
  struct Entry {
    std::int32_t column = 0;
    std::int32_t pattern = kFull;  // where the elements are, or kFull
  };

  BlockShape block;
  std::int64_t q_blocks = 0;
  std::int64_t kv_blocks = 0;
  std::vector<std::int64_t> begins;  // (q blocks + 1): row i has entries [begins[i], begins[i + 1])
  std::vector<Entry> entries;        // of each row by ascending column

  std::span<const Entry> row(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    return std::span(entries).subspan(static_cast<std::size_t>(begins[at]),
                                      static_cast<std::size_t>(begins[at + 1] - begins[at]));
  }
};

/// The elements of the partial blocks of a grid.
class BlockElements {
 public:
  virtual ~BlockElements() = default;
  /// The part of a block that lies in row `i` of blocks, queries and keys counted from the block's first. May
  /// be called by several threads.
  virtual void fill(std::int64_t i, std::int32_t pattern, const Rectangle& part,
                    const BitRows& out) const = 0;
};

/// `elements` may be null where no block is partial. The lengths cut the last blocks short. `text` is what
/// the mask says that it is.
Mask grid_mask(std::shared_ptr<const BlockGrid> grid, std::shared_ptr<const BlockElements> elements,
               std::int64_t q_length, std::int64_t kv_length, std::string text);

}  // namespace ejk::blocks
